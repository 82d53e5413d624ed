#!/usr/bin/env node
// Runs kbroker, a Python program, from a cached Python environment. The first start creates the
// environment with uv or Python 3.11+ from the PATH. If there is neither, it downloads uv.
"use strict";

const { spawn, spawnSync } = require("node:child_process");
const { createHash } = require("node:crypto");
const fs = require("node:fs");
const os = require("node:os");
const path = require("node:path");

const { version } = require("../package.json");

const WINDOWS = process.platform === "win32";
const OLDEST_MINOR = 11;
const UV_VERSION = "0.13.9";
const UV_RELEASES = "https://github.com/astral-sh/uv/releases/download";
const UV_TARGETS = {
  "linux-x64": "x86_64-unknown-linux",
  "linux-arm64": "aarch64-unknown-linux",
  "darwin-x64": "x86_64-apple-darwin",
  "darwin-arm64": "aarch64-apple-darwin",
  "win32-x64": "x86_64-pc-windows-msvc",
  "win32-arm64": "aarch64-pc-windows-msvc",
};

/** Return the directory for environments and for uv. */
function cacheDirectory() {
  const { KBROKER_CACHE_DIR, LOCALAPPDATA, XDG_CACHE_HOME } = process.env;
  if (KBROKER_CACHE_DIR) return path.resolve(KBROKER_CACHE_DIR);
  if (WINDOWS && LOCALAPPDATA) return path.join(LOCALAPPDATA, "kbroker", "npm");
  if (process.platform === "darwin") {
    return path.join(os.homedir(), "Library", "Caches", "kbroker", "npm");
  }
  return path.join(XDG_CACHE_HOME || path.join(os.homedir(), ".cache"), "kbroker", "npm");
}

/** Return the name of a package's environment. It changes if a local file is rebuilt. */
function environmentName(requirement) {
  const file = fs.statSync(requirement.replace(/\[.*\]$/, ""), { throwIfNoEntry: false });
  const key = file ? `${path.resolve(requirement)} ${file.mtimeMs}` : requirement;
  return createHash("sha256").update(key).digest("hex").slice(0, 16);
}

function pythonOf(environment) {
  return path.join(environment, ...(WINDOWS ? ["Scripts", "python.exe"] : ["bin", "python"]));
}

/** Return the first Python on the PATH that can create environments for kbroker, or undefined. */
function findPython() {
  const names = [["python3"], ["python"]];
  if (WINDOWS) names.unshift(["py", "-3"]);
  for (let minor = 14; minor >= OLDEST_MINOR; minor--) names.push([`python3.${minor}`]);
  // Debian's Python lacks ensurepip without the package python3-venv.
  const check = `import ensurepip, sys, venv; sys.exit(sys.version_info < (3, ${OLDEST_MINOR}))`;
  return names.find(([program, ...rest]) => {
    return spawnSync(program, [...rest, "-c", check], { stdio: "ignore" }).status === 0;
  });
}

/** Run a command with its output on stderr, and return true if it succeeds. */
function succeeds(program, ...args) {
  return spawnSync(program, args, { stdio: ["ignore", 2, 2] }).status === 0;
}

function hasUv() {
  return spawnSync("uv", ["--version"], { stdio: "ignore" }).status === 0;
}

/** Return the name of uv's archive for this platform, without its suffix. */
function uvArchive() {
  const target = UV_TARGETS[`${process.platform}-${process.arch}`];
  if (target === undefined) {
    throw new Error(
      `${process.platform}-${process.arch}: no uv to download; install Python 3.${OLDEST_MINOR} or newer`,
    );
  }
  if (process.platform !== "linux") return `uv-${target}`;
  const { glibcVersionRuntime } = process.report.getReport().header;
  return `uv-${target}-${glibcVersionRuntime ? "gnu" : "musl"}`;
}

async function download(url) {
  let response;
  try {
    response = await fetch(url);
  } catch (error) {
    throw new Error(`${url}: ${(error.cause || error).message}`);
  }
  if (!response.ok) throw new Error(`${url}: HTTP status ${response.status}`);
  return Buffer.from(await response.arrayBuffer());
}

/** Return the path of the downloaded uv. Downloads it first if the cache lacks it. */
async function downloadedUv(cache) {
  const archive = uvArchive();
  const directory = path.join(cache, `uv-${UV_VERSION}`);
  const program = WINDOWS
    ? path.join(directory, "uv.exe")
    : path.join(directory, archive, "uv");
  if (fs.existsSync(program)) return program;
  const base = process.env.UV_DOWNLOAD_URL || `${UV_RELEASES}/${UV_VERSION}`;
  const url = `${base}/${archive}${WINDOWS ? ".zip" : ".tar.gz"}`;
  console.error(`kbroker: downloading ${url}`);
  const content = await download(url);
  const [expected] = (await download(`${url}.sha256`)).toString().split(/\s/);
  const found = createHash("sha256").update(content).digest("hex");
  if (found !== expected) throw new Error(`${url}: SHA-256 is ${found}, expected ${expected}`);
  const incomplete = fs.mkdtempSync(path.join(cache, "incomplete-"));
  const file = path.join(incomplete, "archive");
  fs.writeFileSync(file, content);
  if (!succeeds("tar", "-xf", file, "-C", incomplete)) throw new Error(`${url}: cannot be unpacked`);
  fs.rmSync(file);
  moveInto(incomplete, directory);
  return program;
}

/** Rename a complete directory. If another process was faster, its directory stays. */
function moveInto(incomplete, directory) {
  try {
    fs.renameSync(incomplete, directory);
  } catch (error) {
    fs.rmSync(incomplete, { recursive: true, force: true });
    if (!fs.existsSync(directory)) throw error;
  }
}

function installWithUv(uv, directory, requirement) {
  const python = process.env.UV_PYTHON || `>=3.${OLDEST_MINOR}`;
  return (
    succeeds(uv, "venv", "--quiet", "--no-project", "--python", python, directory) &&
    succeeds(uv, "pip", "install", "--quiet", "--python", pythonOf(directory), requirement)
  );
}

function installWithPip([program, ...rest], directory, requirement) {
  const pip = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check"];
  return (
    succeeds(program, ...rest, "-m", "venv", directory) &&
    succeeds(pythonOf(directory), ...pip, requirement)
  );
}

/** Create an environment with kbroker. */
async function install(cache, environment, requirement) {
  console.error(`kbroker: installing ${requirement} in ${environment}`);
  fs.mkdirSync(cache, { recursive: true });
  const incomplete = fs.mkdtempSync(path.join(cache, "incomplete-"));
  const python = hasUv() ? undefined : findPython();
  const installed = python
    ? installWithPip(python, incomplete, requirement)
    : installWithUv(hasUv() ? "uv" : await downloadedUv(cache), incomplete, requirement);
  if (!installed) {
    fs.rmSync(incomplete, { recursive: true, force: true });
    throw new Error(
      `${requirement}: cannot be installed; see the output above, and set KBROKER_PACKAGE to ` +
        "install another version or a local wheel",
    );
  }
  moveInto(incomplete, environment);
}

/** Run kbroker, forward signals to it, and end with its exit status or signal. */
function run(environment, args) {
  const child = spawn(pythonOf(environment), ["-m", "kbroker", ...args], { stdio: "inherit" });
  // A terminal sends SIGINT to both processes. This one waits for kbroker to stop.
  process.on("SIGINT", () => {});
  for (const signal of ["SIGTERM", "SIGHUP"]) process.on(signal, () => child.kill(signal));
  child.on("error", fail);
  child.on("exit", (code, signal) => {
    if (signal === null) process.exit(code);
    process.removeAllListeners(signal);
    process.kill(process.pid, signal);
  });
}

function fail(error) {
  console.error(`kbroker: ${error.message}`);
  process.exit(1);
}

async function main() {
  const requirement = process.env.KBROKER_PACKAGE || `kbroker==${version}`;
  const cache = cacheDirectory();
  const environment = path.join(cache, environmentName(requirement));
  if (!fs.existsSync(environment)) await install(cache, environment, requirement);
  run(environment, process.argv.slice(2));
}

main().catch(fail);
