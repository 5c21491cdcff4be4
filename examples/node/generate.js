// Streams a completion: node generate.js ADDRESS PROMPT [SEED]. The program knows only the schema.
import { fileURLToPath } from "node:url";
import grpc from "@grpc/grpc-js";
import loader from "@grpc/proto-loader";

const protos = process.env.TANDEM_PROTOS ?? fileURLToPath(new URL("../../protos", import.meta.url));
const [address = "127.0.0.1:50051", text = "Once upon a time", seed] = process.argv.slice(2);

// Numbers of 64 bits, such as seeds, are strings, because a number of JavaScript holds 53 bits.
const schema = loader.loadSync("tandem/v1/orchestrator.proto", {
  includeDirs: [protos],
  keepCase: true,
  longs: String,
  enums: String,
  oneofs: true,
});
const { OrchestratorService } = grpc.loadPackageDefinition(schema).tandem.v1;
const tandem = new OrchestratorService(address, grpc.credentials.createInsecure());

const request = {
  text,
  sampling: { temperature: 0.7, ...(seed && { seed }) },
  stopping: { max_new_tokens: 40 },
};
const call = tandem.StreamGenerate({ request }, { deadline: Date.now() + 60_000 });
call.on("data", ({ event, chunk, complete }) => {
  if (event === "chunk") {
    process.stdout.write(chunk.text);
  } else if (event === "complete") {
    const { mean_acceptance_length: perStep } = complete.speculation;
    console.log(`\n${perStep.toFixed(2)} tokens per step; seed ${complete.seed}`);
  }
});
call.on("error", (error) => {
  console.error(`${grpc.status[error.code]}: ${error.details}`);
  process.exitCode = 1;
});
call.on("end", () => tandem.close());
