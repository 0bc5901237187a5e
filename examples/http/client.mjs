// A client of `sej hub serve --http`, without packages: node client.mjs put|follow URL OFFSET
// put sends each line of its input once, in order, from an offset on; follow prints values until an empty one.
import { createInterface } from "node:readline";
const [command, url, first] = process.argv.slice(2);
const headers = process.env.SEJ_TOKEN ? { authorization: `Bearer ${process.env.SEJ_TOKEN}` } : {};
const isLater = (answer) => answer.status >= 500 || answer.status === 429;
const pause = () => new Promise((resolve) => setTimeout(resolve, 200));
// Send messages, which may have been sent before, until the hub has stored them; return the next offset.
async function put(offset, messages) {
  for (;;) {
    try {
      const answer = await fetch(`${url}?offset=${offset}`, {
        method: "POST",
        headers: { ...headers, "content-type": "application/json" },
        body: JSON.stringify(messages),
      });
      const row = isLater(answer) ? {} : await answer.json();
      if (answer.ok) return row.next_offset;
      if (row.message) throw new Error(row.message);
    } catch (error) {
      if (!(error instanceof TypeError)) throw error; // fetch throws this for a broken connection
    }
    await pause();
  }
}

// Yield messages from an offset on, for ever; a broken connection is opened again where it ended.
async function* follow(offset) {
  for (;;) {
    try {
      const answer = await fetch(`${url}/events?offset=${offset}`, { headers });
      if (!answer.ok && !isLater(answer)) throw new Error((await answer.json()).message);
      let text = "";
      for await (const part of answer.body.pipeThrough(new TextDecoderStream())) {
        const events = (text + part).split("\n\n");
        text = events.pop();
        for (const event of events) {
          const [, next, data] = /^id: (\d+)\ndata: (.*)$/.exec(event) ?? [];
          if (data === undefined) continue; // a comment, or the error that ends this answer
          yield JSON.parse(data);
          offset = next;
        }
      }
    } catch (error) {
      if (!(error instanceof TypeError)) throw error;
    }
    await pause();
  }
}

if (command === "put") {
  let offset = Number(first);
  for await (const line of createInterface({ input: process.stdin })) offset = await put(offset, [{ value: line }]);
  console.log(offset);
} else {
  for await (const { value } of follow(first)) {
    if (value === "") break;
    console.log(value);
  }
}
