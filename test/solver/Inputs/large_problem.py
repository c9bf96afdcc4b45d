"""Write a problem with memory that binds and edges across a window; it takes minutes to solve."""

import json
import random
import sys

NODES, CHOICES, SPAN, LIVE = 3000, 10, 50, 30


def main():
    draw = random.Random(1)
    sizes = [max(2, int(CHOICES * draw.choice((0.5, 1, 1.5)))) for _ in range(NODES)]
    nodes = {"intervals": [], "costs": [], "usages": []}
    least = [0] * (NODES + LIVE + 1)
    for node, size in enumerate(sizes):
        costs = [draw.randrange(1, 10**6) for _ in range(size)]
        usages = [10**6 * draw.randrange(1, 20) // (1 + cost // 10**5) for cost in costs]
        life = [node, node + 1 + draw.randrange(LIVE)]
        for key, value in (("intervals", life), ("costs", costs), ("usages", usages)):
            nodes[key].append(value)
        for time in range(*life):
            least[time] += min(usages)
    edges = {"nodes": [], "costs": []}
    for node in range(1, NODES):
        for back in (0, draw.randrange(SPAN), draw.randrange(SPAN)):
            other = max(0, node - 1 - back)
            pairs = [
                10**18 if draw.random() < 0.05 else draw.randrange(10**6)
                for _ in range(sizes[other] * sizes[node])
            ]
            edges["nodes"].append([other, node])
            edges["costs"].append(pairs)
    limit = int(1.6 * max(least))
    fields = {"name": "large", "nodes": nodes, "edges": edges, "usage_limit": limit}
    with open(sys.argv[1], "w") as file:
        json.dump({"problem": fields}, file)


if __name__ == "__main__":
    main()
