"""A headless Chromium for tests, by way of chromedriver.

The WebDriver protocol is JSON over HTTP, and of it half a dozen commands are needed: these lines are
less than what selenium would bring along.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx2

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
MISSING = "needs a browser: apt-get install chromium chromium-driver"
AXE = Path(__file__).parents[2] / "node_modules/axe-core/axe.min.js"
KEYS = {"Left": "\ue012", "Right": "\ue014", "Home": "\ue011", "End": "\ue010", "Down": "\ue015"}
KEYS |= {"Up": "\ue013", "Tab": "\ue004", "Enter": "\ue007", "Escape": "\ue00c", "Control": "\ue009", "Shift": "\ue008"}
KEYS |= {"Space": " "}
_ELEMENT = "element-6066-11e4-a52e-4f735466cecf"  # the key that the protocol gives elements


class Browser:
    """A session with one window."""

    def __init__(self, url: str) -> None:
        self._http = httpx2.Client(timeout=60, trust_env=False)
        self._url = url
        arguments = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"]
        options = {"binary": CHROMIUM, "args": arguments, "perfLoggingPrefs": {"enableNetwork": True}}
        logs = {"browser": "ALL", "performance": "ALL"}
        wanted = {"browserName": "chrome", "goog:chromeOptions": options, "goog:loggingPrefs": logs}
        session = self._call("POST", "/session", {"capabilities": {"alwaysMatch": wanted}})
        self._url = f"{url}/session/{session['sessionId']}"

    def close(self) -> None:
        self._call("DELETE", "")
        self._http.close()

    def open(self, url: str) -> None:
        self.log("browser")
        self.log("performance")
        self._call("POST", "/url", {"url": url})

    def run(self, script: str, *arguments: object) -> Any:
        """What a function body returns in the page."""
        return self._call("POST", "/execute/sync", {"script": script, "args": list(arguments)})

    def text(self, selector: str) -> str:
        return self.run("return document.querySelector(arguments[0]).innerText.trim()", selector)

    def click(self, selector: str) -> None:
        self._call("POST", f"/element/{self._find(selector)}/click", {})

    def type(self, selector: str, text: str) -> None:
        """Types into an element; a path into one that takes a file chooses that file."""
        self._call("POST", f"/element/{self._find(selector)}/value", {"text": text})

    def press(self, *keys: str, together: bool = False) -> None:
        """One key after the other, or all together: names of `KEYS`, and characters."""
        for group in [keys] if together else [[key] for key in keys]:
            strokes = [{"type": "keyDown", "value": KEYS.get(key, key)} for key in group]
            strokes += [{"type": "keyUp", "value": KEYS.get(key, key)} for key in reversed(group)]
            self._call("POST", "/actions", {"actions": [{"type": "key", "id": "keyboard", "actions": strokes}]})

    def devtools(self, command: str, **parameters: object) -> Any:
        """A command that WebDriver has not: to emulate a printer, a telephone, the dark."""
        return self._call("POST", "/goog/cdp/execute", {"cmd": command, "params": parameters})

    def log(self, kind: str) -> list[dict]:
        """What has been logged since the last call: `browser` (the console) or `performance` (the network)."""
        return self._call("POST", "/se/log", {"type": kind})

    def requests(self) -> list[str]:
        messages = (json.loads(entry["message"])["message"] for entry in self.log("performance"))
        sent = [message["params"] for message in messages if message["method"] == "Network.requestWillBeSent"]
        return [request["request"]["url"] for request in sent]

    def alert(self) -> bool:
        return isinstance(self._http.get(f"{self._url}/alert/text").json()["value"], str)

    def _find(self, selector: str) -> str:
        found = self._call("POST", "/element", {"using": "css selector", "value": selector})
        return found[_ELEMENT]

    def _call(self, method: str, path: str, body: dict | None = None) -> Any:
        value = self._http.request(method, self._url + path, json=body).json()["value"]
        if isinstance(value, dict) and "error" in value:
            raise RuntimeError(f"{value['error']}: {value['message'].splitlines()[0]}")
        return value


def wait(browser: Browser, script: str, expected: object = True) -> None:
    """Wait until a script returns what is expected."""
    deadline = time.monotonic() + 60
    while (found := browser.run(script)) != expected:
        assert time.monotonic() < deadline, f"{script}: {found!r}, expected {expected!r}"
        time.sleep(0.02)


def tab(browser: Browser, times: int) -> list[str]:
    """Press Tab; the label of each element that it comes to, with "(unseen)" if nothing shows that it has the focus."""
    script = """
        const on = document.activeElement;
        const name = on.ariaLabel ?? on.labels?.[0]?.innerText ?? (on.innerText || on.querySelector('img')?.alt);
        const outlined = (one) => one && !one.classList.contains('unseen')
            && getComputedStyle(one).outlineStyle !== 'none' && getComputedStyle(one).opacity !== '0';
        const seen = [on, on.nextElementSibling, on.closest('label')].some(outlined);
        return `${name.trim().split('\\n')[0]}${seen ? '' : ' (unseen)'}`;"""
    found = []
    for _ in range(times):
        browser.press("Tab")
        found.append(browser.run(script))
    return found


def violations(browser: Browser) -> list[tuple[str, str]]:
    """All that axe-core finds on the page as it is, light and dark (contrasts, too): the rule, and the element."""
    found = []
    for scheme in ("light", "dark"):
        browser.devtools("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        browser.run(AXE.read_text(encoding="utf-8"))
        rules = browser.run("return window.axe.run({resultTypes: ['violations']}).then(found => found.violations)")
        found += [
            (f"{scheme}: {rule['id']}: {node['failureSummary']}", node["html"])
            for rule in rules
            for node in rule["nodes"]
        ]
    return found


@contextmanager
def running_driver() -> Iterator[str]:
    """Starts the driver on a free port, and gives its address; it ends with the block."""
    driver = subprocess.Popen([DRIVER, "--port=0"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        said = []
        for line in driver.stdout:
            said.append(line)
            if match := re.search(r"started successfully on port (\d+)", line):
                yield f"http://127.0.0.1:{match[1]}"
                return
        raise ConnectionError(f"{DRIVER} ended before it listened: {''.join(said)}")
    finally:
        driver.terminate()
        driver.wait(timeout=30)
        driver.stdout.close()


@contextmanager
def running_browser(attempts: int = 3) -> Iterator[Browser]:
    """Starts a driver and its browser; both end with the block. Another program can take the driver's port first."""
    with ExitStack() as running:
        for attempt in range(1, attempts + 1):
            try:
                address = running.enter_context(running_driver())
                break
            except ConnectionError:
                if attempt == attempts:
                    raise
        browser = Browser(address)
        running.callback(browser.close)
        yield browser


def texts(browser: Browser, selector: str) -> list[str]:
    """The text of each element."""
    return browser.run("return [...document.querySelectorAll(arguments[0])].map(one => one.textContent)", selector)
