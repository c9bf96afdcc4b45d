"""Debian's Chromium without a window, for tests and benchmarks of pages."""

from __future__ import annotations

import importlib
import json
import shutil
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

_ARGUMENTS = (
    "--headless=new",
    "--no-sandbox",  # Tests may run as root.
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-breakpad",
    "--no-first-run",
)


class Browser:
    """A tab; what it logged and asked for since it was opened."""

    def __init__(self, driver: Any) -> None:
        self.driver = driver
        self.errors: list[str] = []
        self.requests: list[str] = []

    def open(self, path: Path) -> None:
        """Load a page from disk; returns when its scripts have run."""
        self.driver.get(path.resolve().as_uri())
        self.collect()

    def run(self, script: str, *arguments: Any) -> Any:
        """The value that a script returns."""
        return self.driver.execute_script(script, *arguments)

    def collect(self) -> None:
        """Take what was logged since the last time."""
        self.errors += [entry["message"] for entry in self.driver.get_log("browser")]
        for entry in self.driver.get_log("performance"):
            message = json.loads(entry["message"])["message"]
            if message["method"] == "Network.requestWillBeSent":
                self.requests.append(message["params"]["request"]["url"])

    def resize(self, width: int, height: int = 900) -> None:
        """The size of the page, without the window's frame."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)

    def prefer(self, scheme: str) -> None:
        """`light` or `dark`."""
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})


@contextmanager
def chromium() -> Generator[Browser]:
    """A browser that ends with the block.

    Raises:
        FileNotFoundError: there is no Chromium, or no driver for it.
    """
    programs = [shutil.which(name) for name in ("chromium", "chromedriver")]
    if None in programs:
        raise FileNotFoundError("needs Debian's chromium and chromium-driver: make setup")
    webdriver: Any = importlib.import_module("selenium.webdriver")
    service: Any = importlib.import_module("selenium.webdriver.chrome.service")
    options = webdriver.ChromeOptions()
    options.binary_location = programs[0]
    for argument in _ARGUMENTS:
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=service.Service(programs[1]))
    try:
        yield Browser(driver)
    finally:
        driver.quit()
