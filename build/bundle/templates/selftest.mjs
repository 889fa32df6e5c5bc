// node selftest.mjs: runs the self-test of this bundle's @FILE@.
import { readFile } from 'node:fs/promises';
import { selfTest } from './@FILE@';

await selfTest((path) => readFile(new URL(`../${path}`, import.meta.url)));
