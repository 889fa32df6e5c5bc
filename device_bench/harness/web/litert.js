// LiteRT.js as an engine of the harness.

import { fixShapes } from './tflite.js';

const DTYPES = { float32: 'F32', int32: 'I32', uint8: 'U8' };

/**
 * @param options {provider, threads, module, folder, shapes: call -> {name: sizes}}
 * @returns an engine, as in ort.js
 */
export async function engine(options) {
  const litert = await import(new URL(options.module, document.baseURI).href);
  const threaded = options.provider === 'wasm' && options.threads > 1;
  let model = null;
  let bytes = null;
  let pool = 1;
  // Kept: the one that is timed, which comes first, and the last one. Each holds the whole model's weights.
  const compiled = new Map();
  const fixed = new Set();

  /** The model compiled for a call's sizes: LiteRT.js takes no dynamic ones. */
  async function compile(call, inputs) {
    const shapes = { ...options.shapes[call.id] };
    for (const [name, { dims }] of Object.entries(inputs)) shapes[name] = dims;
    const key = JSON.stringify([call.entry, shapes]);
    if (!compiled.has(key)) {
      const [, last] = compiled.keys();
      if (last !== undefined) {
        compiled.get(last).delete();
        compiled.delete(last);
      }
      const ready = fixShapes(bytes, call.entry, shapes);
      ready.fixed.forEach((line) => fixed.add(line));
      compiled.set(key, await litert.loadAndCompile(ready.bytes, compileOptions()).catch(explain));
      requireProvider(compiled.get(key));
    }
    return compiled.get(key);
  }

  function compileOptions() {
    if (options.provider === 'webgpu') return { accelerator: 'webgpu', gpuOptions: { precision: 'fp32' } };
    return { accelerator: 'wasm', cpuOptions: { numThreads: options.threads } };
  }

  // LiteRT.js goes on with wasm when a GPU can't take the whole model, and only logs it.
  function requireProvider(found) {
    if (found.options.accelerator !== options.provider || !found.isFullyAccelerated) {
      throw new Error(`LiteRT.js can't run the whole model on ${options.provider}: it would fall back to wasm`);
    }
  }

  return {
    async create(content, call, inputs) {
      const runtime = await litert.loadLiteRt(new URL(options.folder, document.baseURI).href, { threads: threaded });
      pool = threaded ? runtime.liteRtWasm.getThreadCount() : 1;
      if (options.threads > pool && options.provider === 'wasm') {
        throw new Error(`LiteRT.js has ${pool} threads in this browser, ${options.threads} were asked for`);
      }
      bytes = content;
      model = await compile(call, inputs);
    },

    async prepare(call, inputs) {
      model = await compile(call, inputs);
      const signature = model.signatures[call.entry];
      if (signature === undefined) throw new Error(`the model has no signature '${call.entry}'`);
      const feeds = {};
      for (const detail of signature.getInputDetails()) {
        if (!(detail.name in inputs)) throw new Error(`the model wants an input '${detail.name}'`);
        feeds[detail.name] = new litert.Tensor(converted(detail, inputs[detail.name]), inputs[detail.name].dims);
      }
      const gpu = options.provider === 'webgpu';
      return {
        // On a GPU a result is there when it has been read back: run() itself only queues the work.
        run: gpu ? () => signature.run(feeds).then(readBack) : () => signature.run(feeds),
        release: (result) => Object.values(result).forEach((tensor) => tensor.delete?.()),
        async outputs(result) {
          const found = {};
          for (const [name, value] of Object.entries(result)) {
            const { dtype, layout } = value.type;
            const data = gpu ? value.data : value.toTypedArray();
            found[name] = { dtype: DTYPES[dtype], dims: [...layout.dimensions], data };
          }
          return found;
        },
      };
    },

    facts() {
      const details = { fixed_shapes: [...fixed].join('; ') || null, litert_threaded_build: threaded, litert_pool: pool };
      // How many threads of its pool a model uses can't be asked: null, in place of an echo of what it was told.
      return { provider: options.provider, threads: threaded ? null : 1, version: null, details };
    },
  };
}

async function readBack(result) {
  const read = {};
  for (const [name, tensor] of Object.entries(result)) {
    const data = await tensor.data();
    read[name] = { type: tensor.type, data };
    tensor.delete();
  }
  return read;
}

function explain(error) {
  const more = /Element type/.test(String(error)) ? ` Its inputs and outputs can be ${Object.keys(DTYPES).join(', ')}.` : '';
  throw new Error(`LiteRT.js: ${error.message || error}${more}`);
}

/** An input in the dtype that the file has: 64-bit integers are 32-bit ones there. */
function converted(detail, { dtype, data }) {
  if (DTYPES[detail.dtype] === dtype) return data;
  if (dtype === 'I64' && detail.dtype === 'int32') {
    return Int32Array.from(data, (value) => {
      if (BigInt.asIntN(32, value) !== value) throw new Error(`${value} in '${detail.name}' needs more than 32 bits`);
      return Number(value);
    });
  }
  throw new Error(`LiteRT.js takes ${detail.dtype} for '${detail.name}', not ${dtype}`);
}
