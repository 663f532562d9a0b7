"""The report of a request: its text is decoded once more under each method, and traced.

The decoder's thread makes the traces (`traced`), `report_of` the page of `sira report`. No file is written or opened.
"""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import Field

from sira_cli.analysis.page.page import render
from sira_cli.analysis.trace.read import traces_of
from sira_cli.analysis.trace.record import trace_generated
from sira_cli.analysis.trace.request import OpenedRequest, TraceOptions
from sira_cli.analysis.trace.targets import Line, as_json
from sira_cli.data.records.record import Answer
from sira_cli.models.inputs.processors import refusing
from sira_cli.models.lvlm import Lvlm
from sira_cli.serve.jobs import Job, Reply, TextPiece
from sira_cli.serve.protocol import ChatRequest, RequestError, SiraOptions

MOST_TRACES = 4  # as many columns as the page has side by side


class ReportRequest(ChatRequest):
    """A request, and the methods to decode it with.

    Attributes:
        traces: methods and settings, one per trace; empty: those in `sira`.
        title: title of the page; None: the picture's.
    """

    traces: list[SiraOptions] = Field(default=[], max_length=MOST_TRACES)
    title: str | None = None

    def check(self) -> None:
        """Check that all requested features are supported."""
        super().check()
        for options in self.traces:
            options.check()
        if self.response_format.type != "text":
            raise RequestError("response_format: the report marks words; leave it out", param="response_format")
        if self.stops():
            raise RequestError("stop: a trace goes on to the end of the text; leave it out", param="stop")

    def chats(self) -> list[ChatRequest]:
        """Return a request for each trace."""
        options = self.traces or [self.sira]
        return [self.model_copy(update={"sira": each, "stream": False, "logprobs": False}) for each in options]


def traced(lvlm: Lvlm, job: Job) -> Reply:
    """Decode a job's text and put the lines of its trace into `job.trace`, unless its client goes away.

    Raises:
        RequestError: the client has gone, or a trace cannot show the request.
        SettingsError: the method cannot be traced.
        PictureError: the image processor refuses the picture.
    """
    if not isinstance(job.prompt, str):
        message = "messages: the report is about one turn with its pictures first; leave out the others"
        raise RequestError(message, param="messages")
    if job.verify is not None and job.verify.mode != "flag":
        raise RequestError("verify: the report marks things; expected flag", param="sira")
    lines: list[Line] = []

    def write(line: Line) -> None:
        if job.gone:
            raise RequestError("the client has gone", 499, code="gone")
        lines.append(line)

    request = OpenedRequest(job.task, job.pictures.opened(), "the picture", job.prompt)
    with refusing("the picture"):
        end = trace_generated(lvlm, request, TraceOptions(verify=job.verify), write)
    job.trace = lines
    answer = Answer(end["text"], end["finish_reason"], output_tokens=end["output_tokens"])
    return Reply(answer, {}, TextPiece("", []))


def report_of(jobs: Sequence[Job], title: str | None = None) -> str:
    """Return the page of jobs that have been traced."""
    traces = [trace for job in jobs for trace in traces_of(as_json(line).encode() + b"\n" for line in job.trace or ())]
    pictures = {job.pictures.sha256: job.pictures.opened() for job in jobs}
    return render(traces, title, pictures)
