// ONNX Runtime Web as an engine of the harness.

/** safetensors' dtype -> ONNX Runtime's */
const TYPES = {
  BOOL: 'bool', U8: 'uint8', I8: 'int8', I16: 'int16', I32: 'int32', I64: 'int64', F16: 'float16', F32: 'float32',
  F64: 'float64',
};
const DTYPES = Object.fromEntries(Object.entries(TYPES).map(([dtype, type]) => [type, dtype]));

/**
 * @param options {provider, threads, module, wasm, external: [[path in the model, bytes]]}
 * @returns an engine: {create(bytes), prepare(call, inputs), facts()}
 */
export async function engine(options) {
  const ort = await import(new URL(options.module, document.baseURI).href);
  ort.env.logLevel = 'error';
  ort.env.wasm.numThreads = options.threads;
  ort.env.wasm.wasmPaths = { wasm: new URL(options.wasm, document.baseURI).href };
  let session = null;
  let partial = false;

  async function open(bytes, strict) {
    const extra = strict ? { extra: { session: { disable_cpu_ep_fallback: '1' } } } : {};
    const external = (options.external ?? []).map(([path, data]) => ({ path, data }));
    const more = external.length ? { externalData: external } : {};
    return ort.InferenceSession.create(bytes, { executionProviders: [options.provider], ...more, ...extra });
  }

  return {
    /** Make the session. On a GPU every node must run there; where that can't be, it is tried without, and noted. */
    async create(bytes) {
      if (options.provider === 'wasm') {
        session = await open(bytes, false);
        return;
      }
      try {
        session = await open(bytes, true);
      } catch (error) {
        if (!/fallback|assigned to the default CPU/i.test(String(error))) throw error;
        partial = true;
        session = await open(bytes, false);
      }
    },

    /** @returns {run, release, outputs}: one call, ready to be run as often as one likes */
    async prepare(call, inputs) {
      const feeds = {};
      for (const [name, { dtype, dims, data }] of Object.entries(inputs)) {
        feeds[name] = new ort.Tensor(TYPES[dtype], data, dims);
      }
      return {
        run: () => session.run(feeds),
        release: () => {},
        async outputs(result) {
          const found = {};
          for (const [name, tensor] of Object.entries(result)) {
            if (!(tensor.type in DTYPES)) throw new Error(`output '${name}' is ${tensor.type}`);
            found[name] = { dtype: DTYPES[tensor.type], dims: tensor.dims, data: tensor.data };
          }
          return found;
        },
      };
    },

    facts() {
      const used = partial ? `${options.provider}, some nodes on wasm` : options.provider;
      return { provider: used, threads: ort.env.wasm.numThreads, version: ort.env.versions.web, details: {} };
    },
  };
}
