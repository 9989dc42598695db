// Serves /stream with KafkaSSE, for streams.py: node kafka_sse.js PORT BOOTSTRAP TOPIC
"use strict";

const http = require("http");
const kafkaSSE = require("kafka-sse");

const [port, bootstrap, topic] = process.argv.slice(2);
// Writes nothing: each client that leaves is an error there.
const ignore = () => {};
const logger = { child: () => logger, trace: ignore, debug: ignore, info: ignore, warn: ignore, error: ignore };

http
  .createServer((request, response) => {
    if (request.url === "/ready") {
      response.end();
    } else {
      const kafkaConfig = { "metadata.broker.list": bootstrap };
      kafkaSSE(request, response, [topic], { kafkaConfig, logger });
    }
  })
  .listen({ host: "127.0.0.1", port: Number(port), backlog: 4096 });
