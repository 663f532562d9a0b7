"""Scripts that put no spaces between words, such as those of Chinese and Japanese."""

from __future__ import annotations

import re

UNSPACED = re.compile(r"[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3005-\u30ff\u31f0-\u9fff\uf900-\ufaff]")
