// Writes the licences of what is vendored beside it, as they ask for.
import { readFileSync, writeFileSync } from "node:fs";

const NAMES = ["preact", "@preact/signals", "@preact/signals-core", "htm", "uplot"];
const parts = NAMES.map((name) => {
  const folder = `node_modules/${name}`;
  const { version } = JSON.parse(readFileSync(`${folder}/package.json`, "utf8"));
  return `${name} ${version}\n\n${readFileSync(`${folder}/LICENSE`, "utf8").trim()}\n`;
});
writeFileSync("../../src/diffuserve/web/static/vendor/LICENSES.txt", parts.join("\n----\n\n"));
