"""Prompts that begin with blocks of earlier ones: where the contrast stream's rows lie, and the texts in vLLM."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch

from sira_cli.vllm.prefix import most_shared, own_table
from sira_cli.vllm.step import Requests, plan
from tests.vllm.models import request as asked_of
from tests.vllm.test_models import WHOLE
from tests.vllm.test_plugin import SIRA, check

SIZE = 4  # tokens per block
WIDTH = 24  # blocks per request
PICTURE = 100  # tokens from here on are image tokens


@dataclass
class Request:
    """A request that is running, or waits."""

    slot: int
    tokens: list[int]
    computed: int = 0
    blocks: list[int] = field(default_factory=list)

    @property
    def image(self) -> np.ndarray:
        """Which tokens are image tokens, up to the last one."""
        found = np.array(self.tokens) >= PICTURE
        return found[: int(np.flatnonzero(found)[-1]) + 1] if found.any() else found[:0]


class Cache:
    """Blocks as vLLM shares them, and what the contrast stream has written to each slot: the tokens up to a row's."""

    def __init__(self, random: np.random.Generator) -> None:
        self.random = random
        self.blocks = 1
        self.known: dict[tuple[int, ...], list[int]] = {}  # blocks by all tokens up to their end
        self.written: dict[int, tuple[int, ...]] = {}
        self.requests = Requests(4)

    def admit(self, request: Request) -> None:
        """Begin a request with the blocks that are known, as far as both streams can."""
        found = []
        while len(found) < (len(request.tokens) - 1) // SIZE:
            same = self.known.get(tuple(request.tokens[: (len(found) + 1) * SIZE]))
            if not same:
                break
            found.append(int(self.random.choice(same)))
        if request.image[: len(found) * SIZE].any():
            found = found[: most_shared(request.image, SIZE) // SIZE]
        request.blocks = found
        request.computed = len(found) * SIZE
        self.requests.put(request.slot, request.image, 0.5, request.computed)

    def allocate(self, request: Request, rows: int) -> None:
        """Give a request the blocks of its next rows; those that will be full are known at once, as in vLLM."""
        end = request.computed + rows
        while len(request.blocks) * SIZE < end:
            request.blocks.append(self.blocks)
            self.blocks += 1
        for number in range(request.computed // SIZE, end // SIZE):
            same = self.known.setdefault(tuple(request.tokens[: (number + 1) * SIZE]), [])
            if request.blocks[number] not in same:
                same.append(request.blocks[number])

    def forget(self) -> None:
        """Lose a block that a later prompt could have begun with."""
        lost = self.random.permutation(len(self.known))[:1]
        for key in [[*self.known][index] for index in lost]:
            del self.known[key]

    def step(self, batch: list[tuple[Request, int]]) -> None:
        """Run rows of several requests: text rows are written, blocks are copied, and text rows are written again."""
        rows = np.array([count for _, count in batch])
        computed = np.array([request.computed for request, _ in batch])
        slots = np.array([request.slot for request, _ in batch])
        starts = np.concatenate([[0], rows.cumsum()])
        step = plan(starts, computed, slots, self.requests, computed < 0, int(starts[-1]))
        table = torch.zeros(len(batch), WIDTH, dtype=torch.int64)
        for number, (request, _) in enumerate(batch):
            table[number, : len(request.blocks)] = torch.tensor(request.blocks)
        shared = self.requests.shared[slots]
        first = self.requests.first[slots]
        whole = torch.from_numpy(first // SIZE)
        own = own_table(table, whole, torch.from_numpy(shared // SIZE - first // SIZE))
        position = [request.computed + row for request, count in batch for row in range(count)]
        for again in (False, True):
            for row, number, place in zip(step.rows.tolist(), step.request.tolist(), step.place.tolist(), strict=False):
                slot = int(own[number, place // SIZE]) * SIZE + place % SIZE
                self.written[slot] = tuple(batch[number][0].tokens[: position[row] + 1])
            for number in np.flatnonzero((computed == shared) & (shared > 0) & (first % SIZE > 0)) if not again else ():
                source, target = (int(each[number, whole[number]]) * SIZE for each in (table, own))
                for offset in range(SIZE):
                    self.written[target + offset] = self.written.get(source + offset, ())
        for number, (request, count) in enumerate(batch):
            request.computed += count
            self.check(request, own[number])

    def check(self, request: Request, own: torch.Tensor) -> None:
        """All text rows so far must lie where the request reads them, and in blocks that it has."""
        text = [end for end in range(1, request.computed + 1) if request.tokens[end - 1] < PICTURE]
        for place, end in enumerate(text):
            assert int(own[place // SIZE]) in request.blocks
            assert self.written[int(own[place // SIZE]) * SIZE + place % SIZE] == tuple(request.tokens[:end])


def prompt(random: np.random.Generator) -> list[int]:
    """One of a few beginnings, pictures and questions, so that many prompts begin alike."""
    tokens = [1] * int(random.choice([0, 3, 6, 8]))
    for _ in range(random.integers(0, 3)):
        picture = PICTURE + int(random.integers(0, 2))
        tokens += [picture] * int(random.choice([3, 8, 13])) + [2] * int(random.integers(0, 3))
    return tokens + [3] * int(random.integers(1, 9)) + [int(random.integers(4, 7))] * int(random.integers(1, 6))


@pytest.mark.parametrize("seed", range(40))
def test_each_request_reads_its_own_rows(seed):
    """Alone and together, in chunks, with blocks of a step that still runs, lost blocks, and lost places."""
    random = np.random.default_rng(seed)
    cache = Cache(random)
    running: list[Request] = []
    shares = 0
    for _ in range(150):
        batch = []
        for request in running:
            left = len(request.tokens) - request.computed
            rows = int(random.integers(1, left + 1)) if random.random() < 0.5 else left
            cache.allocate(request, rows)
            batch.append((request, rows))
        for slot in {*range(4)} - {request.slot for request in running}:
            new = Request(slot, prompt(random))
            cache.admit(new)
            shares += int(cache.requests.shared[slot] > 0)
            rows = int(random.integers(1, len(new.tokens) - new.computed + 1))
            cache.allocate(new, rows)
            batch.append((new, rows))
        cache.step(batch)
        for request, _ in batch:
            if request.computed == len(request.tokens):
                request.tokens.append(int(random.integers(4, 7)))
        running = [request for request, _ in batch if len(request.tokens) < 60 and random.random() < 0.7]
        if random.random() < 0.3:
            cache.forget()
    assert shares > 5


def test_image_tokens_leave_room_for_the_rows_that_are_copied():
    """Text rows before the picture, image tokens, and how many tokens may be shared, in blocks of 4."""
    image = {(2, 8): 8, (2, 6): 4, (2, 5): 4, (0, 9): 8, (4, 8): 12, (5, 8): 12, (7, 4): 8, (3, 1): 0}
    for (text, tokens), expected in image.items():
        assert most_shared(np.array([False] * text + [True] * tokens), SIZE) == expected


BEFORE = "a red house and a tree " * 6
AFTER = "the house and the tree and the car " * 5  # longer than a block
BLOCKS = {"block_size": 32}


def question(family: str, images: list[str], about: str, tokens: int = 12, **more: Any) -> dict[str, Any]:
    """A request about pictures after a text, which begins as all others do."""
    asked = asked_of(family, images, AFTER + about, tokens, **more)
    return asked | {"prompt": BEFORE + asked["prompt"]}


def questions(family: str, pictures: list[str]) -> list[dict[str, Any]]:
    """A text and a picture; then several questions about a picture at once, and about others."""
    zero = {"sira": {"alpha": 0}}
    first = [question(family, [], "a boat", 6), question(family, pictures[:1], "part 1", **zero)]
    second = [question(family, pictures[1:2], f"part {number}") for number in range(4)]
    second[1] |= zero
    second[2]["sira"] = {"alpha": 1.5}
    second += [question(family, each, "part 1") for each in (pictures[2:3], pictures[1:3], pictures[:1])]
    return [{"requests": first}, {"requests": second}]


def test_questions_about_a_picture(folder, pictures, run):
    """The text before the picture comes from any prompt, the picture from those that show it."""
    batches = questions("llava", pictures)
    found = run("decode", folder("llava"), options=SIRA | BLOCKS, batches=batches)
    check(folder("llava"), batches, found["answers"])
    text, picture = 32, 96
    assert found["cached"] == [[0, text], [text, picture, picture, picture, text, picture, picture]]


@pytest.mark.parametrize(("family", "options"), [("qwen2.5-vl", {}), ("gemma3", WHOLE)])
def test_questions_about_a_picture_by_attention_of_cards(family, options, folder, pictures, run):
    """Positions on three axes; and image tokens that see all of their picture, in layers with and without a window."""
    large = [pictures[3], pictures[7]]
    asked = [asked_of(family, [large[number // 3]], f"part {number}", 6) for number in range(4)]
    many = [each | {"prompt": BEFORE[: len(BEFORE) // 2] + each["prompt"]} for each in asked]
    options = SIRA | options | {"block_size": 16}
    found = run("decode", folder(family), options=options, batches=[{"requests": many}], triton=True)
    check(folder(family), [{"requests": many}], found["answers"])
    none, *same, text = found["cached"][0]
    assert none == 0 < text < min(same)


def test_questions_in_pieces_that_lose_their_place(folder, pictures, run):
    """A prompt may begin with blocks of one that is not through yet, or with its own ones after it lost its place."""
    many = [question("llava", pictures[number % 2 :][:1], f"part {number}", 60) for number in range(6)]
    many[1]["sira"] = {"alpha": 0}
    batches = [{"requests": many}]
    options = SIRA | BLOCKS | {"max_num_batched_tokens": 96, "num_gpu_blocks_override": 24, "max_model_len": 288}
    found = run("decode", folder("llava"), options=options, batches=batches)
    check(folder("llava"), batches, found["answers"])
    assert found["preempted"]
    assert max(found["cached"][0]) == 96


def test_questions_whose_first_step_is_a_graph(folder, pictures, run):
    """With one token of a prompt at once each step is a decoding step to vLLM."""
    first, *others = (asked_of("llava", pictures[:1], f"part {number}", 2) for number in range(3))
    batches = [{"requests": [first]}, {"requests": others, "rows": 1}]
    options = SIRA | {"block_size": 16}
    found = run("decode", folder("llava"), options=options, batches=batches, graphs=[2])
    check(folder("llava"), batches, found["answers"])
    assert min(found["replays"].values()) > 0
    assert min(found["cached"][1]) == 64


@pytest.mark.parametrize(
    ("family", "v1", "why"),
    [("qwen3.5", False, "of layers with a state per request"), ("llava", True, "in model runner V1")],
)
def test_where_no_prompt_can_begin_with_blocks_of_others(family, v1, why, folder, run):
    """Refused if it is asked for, and off by default."""
    asked, default = run("refused", folder(family), v1=v1, options=[SIRA | {"enable_prefix_caching": True}, SIRA])
    assert f"prefix caching {why}: leave out --enable-prefix-caching" in asked
    assert default == ""
