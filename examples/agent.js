// An agent in another language: it reads its task on stdin, calls the policy and a tool over HTTP, and prints its answer.
const url = process.env.OPENAI_BASE_URL;
const headers = { Authorization: `Bearer ${process.env.OPENAI_API_KEY}`, "Content-Type": "application/json" };

async function post(path, body) {
  const reply = await fetch(url + path, { method: "POST", headers, body: JSON.stringify(body) });
  if (!reply.ok) throw new Error(`${path}: ${reply.status} ${await reply.text()}`);
  return reply.json();
}

async function main() {
  const task = JSON.parse(require("fs").readFileSync(0, "utf8"));
  const messages = [{ role: "user", content: task.question }];
  for (let turn = 0; turn < 5; turn++) {
    const said = (await post("/chat/completions", { messages })).choices[0].message.content || "";
    const [, action, text] = said.match(/<(search|answer)>([^<]*)/) || [null, "answer", said];
    if (action === "answer") return text.trim() || "unknown";
    const found = (await post("/tools/search", { query: text.trim() })).result;
    messages.push({ role: "assistant", content: said });
    messages.push({ role: "user", content: `<information>\n${found}\n</information>` });
  }
  return "unknown";
}

main().then(console.log);
