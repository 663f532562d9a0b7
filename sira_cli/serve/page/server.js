// The server, as for any client: requests, streamed answers, and hints when they fail.

const ADVICE = {
  0: "Check that sira serve is still running, then run again.",
  401: "Reload the page to give the key.",
  413: "Choose a smaller picture, or start the server with a larger --limit mb or --limit megapixels.",
  429: "Wait a moment, then run again.",
  500: "Run again. If it fails again, see the server's log.",
  503: "Start the server again, then run again.",
  504: "Run again when fewer requests wait, or start the server with a larger --limit seconds.",
};

// Why a request has no answer. `status` is that of HTTP; 0: no connection.
export class Refusal extends Error {
  constructor(message, status = 0) {
    super(message);
    this.status = status;
  }

  get inWords() {
    return [this.message, ADVICE[this.status]].filter(Boolean).join("\n");
  }
}

export async function send(path, body, signal) {
  const key = sessionStorage.getItem("key");
  const headers = new Headers(key ? { Authorization: `Bearer ${key}` } : {});
  if (body !== undefined) headers.set("Content-Type", "application/json");
  let response;
  try {
    response = await fetch(path, { method: body === undefined ? "GET" : "POST", headers, body, signal });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Refusal("The server does not answer.");
  }
  if (response.ok) return response;
  const told = await response.json().catch(() => null);
  throw new Refusal(told?.error?.message ?? `The server answered ${response.status}.`, response.status);
}

// The events of a streamed answer, until its end is told.
export async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let waiting = "";
  for (;;) {
    const { done, value } = await reader.read().catch((error) => {
      if (error.name === "AbortError") throw error;
      return { done: true };
    });
    if (done) throw new Refusal("The connection was lost.");
    const lines = (waiting + value).split("\n\n");
    waiting = lines.pop();
    for (const line of lines) {
      if (line === "data: [DONE]") return;
      const event = JSON.parse(line.slice("data: ".length));
      if (event.error) throw new Refusal(event.error.message, event.error.code === "timeout" ? 504 : 500);
      yield event;
    }
  }
}
