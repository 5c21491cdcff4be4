// Vercel's AI SDK: a chat, a stream, an object and a tool.
import assert from "node:assert";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateObject, generateText, stepCountIs, streamText, tool } from "ai";
import { z } from "zod";

const [url, name, toolsUrl] = process.argv.slice(2);
const at = (baseURL) =>
  createOpenAICompatible({ name: "tandem", baseURL, supportsStructuredOutputs: true });
const asked = {
  model: at(url)(name),
  prompt: "What is the capital of France? Answer in one sentence.",
  temperature: 0,
  maxOutputTokens: 30,
};
const { text, usage } = await generateText(asked);
assert(text.includes("Paris") && usage.outputTokens > 3);
let streamed = "";
for await (const piece of streamText(asked).textStream) streamed += piece;
assert.equal(streamed, text);
const schema = z.object({ name: z.enum(["Paris", "Lyon"]) });
const { object } = await generateObject({ ...asked, maxOutputTokens: 100, schema });
assert(["Paris", "Lyon"].includes(object.name));
const cities = [];
const weather = tool({
  description: "Tell the weather of a city.",
  inputSchema: z.object({ city: z.string() }),
  execute: async ({ city }) => (cities.push(city), "rain"),
});
const answer = await generateText({
  model: at(toolsUrl)("said"),
  prompt: "How is it in Zürich?",
  tools: { weather },
  stopWhen: stepCountIs(3),
});
assert.equal(answer.text, "It rains.");
assert.deepEqual(cities, ["Zürich", "Zürich"]);
