// Bundles panels.jsx, and the packages it needs, into panels.js and panels.css of the folder that is named.
import { readFileSync } from "node:fs";
import { build } from "esbuild";

const { overrides } = JSON.parse(readFileSync("package.json"));

// Modules of packages that package.json overrides: what is imported from them is never called in a drawing.
const nothing = {
  name: "nothing",
  setup({ onResolve, onLoad }) {
    onResolve({ filter: /^[^.]/ }, ({ path }) => {
      const name = path.split("/").slice(0, path.startsWith("@") ? 2 : 1).join("/");
      return name in overrides ? { path, namespace: "nothing" } : undefined;
    });
    onLoad({ filter: /.*/, namespace: "nothing" }, () => ({ contents: "module.exports = {};" }));
  },
};

await build({
  entryPoints: ["panels.jsx"],
  outdir: process.argv[2] ?? ".",
  bundle: true,
  minify: true,
  jsx: "automatic",
  define: { "process.env.NODE_ENV": '"production"' },
  plugins: [nothing],
  logLevel: "error",
});
