"""The parts of an explanation add up to the objective and what no choice can change."""

import re
import sys
from pathlib import Path

text = Path(sys.argv[1]).read_text()
header = text[text.index("alpa.explanation = ") : text.index("func.func")]
plain = re.sub(r"reads = \[[^]]*\], ", "", re.sub(r'"[^"]*"', '""', header))


def picoseconds(pattern):
    return [round(float(found) * 1e12) for found in re.findall(pattern, plain)]


def field(name):
    (value,) = picoseconds(rf"(?<![\w]){name} = ([-+.\deE]+) : f64(?=[^\]]*$)")
    return value


tables = re.findall(r"(\w+) = \[(.*?)\]", plain)
assert [name for name, _ in tables] == ["axes", "communication", "decisions", "ops"], tables
rows = dict(tables)
plain = re.sub(r"\w+ = \[.*?\],? ?", "", plain)


def column(table, name):
    found = re.findall(rf"(?<![\w]){name} = ([-+.\deE]+) : f64", rows[table])
    return [round(float(value) * 1e12) for value in found]


compute, communication = field("compute_seconds"), field("communication_seconds")
exposed = field("exposed_communication_seconds")
whole = compute + communication + exposed + field("held_bytes_seconds")
assert whole == field("objective_seconds") + field("fixed_seconds"), plain
assert sum(column("communication", "seconds")) == communication
assert sum(column("ops", "compute_seconds")) == compute
assert sum(column("ops", "communication_seconds")) == communication
assert communication > 0
assert compute > 0
by_axis = zip(
    *(column("axes", kind) for kind in ("data", "sequence", "tensor", "expert")), strict=True
)
assert all(sum(each) <= field("product_seconds") for each in by_axis)
more = column("decisions", "runner_up_more_seconds")
assert more
assert min(more) >= 0, more
