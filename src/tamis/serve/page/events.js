// Server-sent events of an answer to a POST, which an EventSource cannot send.

/** Whether this browser can read an answer while it arrives. */
export const canStream = () => "TextDecoderStream" in globalThis && "body" in Response.prototype;

function parsed(block) {
  const fields = block.split("\n").map((line) => line.split(/: ?(.*)/s));
  const value = (name) => fields.find((field) => field[0] === name)?.[1] ?? "";
  return { name: value("event"), data: JSON.parse(value("data")) };
}

/** {name, data} of each event, as it comes. Who stops listening closes the connection. */
export async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      let from = Math.max(0, rest.length - 1);
      rest += value;
      for (let end = rest.indexOf("\n\n", from); end >= 0; end = rest.indexOf("\n\n", from)) {
        yield parsed(rest.slice(0, end));
        rest = rest.slice(end + 2);
        from = 0;
      }
    }
  } finally {
    reader.cancel().catch(() => undefined);
  }
}
