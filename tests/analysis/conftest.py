"""A page of traces or records in the browser."""

from __future__ import annotations

from pathlib import Path

import pytest

from sira_cli.analysis.page import make_page
from tests.support.traces import write_traces


@pytest.fixture
def show(browser, tmp_path):

    def open_page(*traces: list[dict], records: Path | None = None, other: Path | None = None) -> Path:
        page, path = tmp_path / "page.html", records or write_traces(tmp_path / "trace.jsonl", *traces)
        page.write_bytes(make_page(path, other=other).html.encode("utf-8", "backslashreplace"))
        browser.open(page.as_uri())
        return page

    return open_page
