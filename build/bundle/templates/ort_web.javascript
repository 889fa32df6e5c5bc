// @MODEL_NAME@ with ONNX Runtime Web: npm install onnxruntime-web@@VERSION@
import * as ort from 'onnxruntime-web';

/** Input -> dtype, and for each dimension: symbol, smallest, largest (null: none), step, offset. */
const INPUTS = @INPUT_TABLE_JSON@;
const OUTPUTS = @OUTPUT_NAMES_JSON@;
const ARRAYS = {
  float32: Float32Array, float64: Float64Array, int64: BigInt64Array, int32: Int32Array, int16: Int16Array,
  int8: Int8Array, uint8: Uint8Array, bool: Uint8Array, float16: Uint16Array,
};

/**
 * @SUMMARY@
 *
 * Inputs, as {data, dims} with a typed array:
@INPUT_DOC_JS@
 * Outputs, likewise:
@OUTPUT_DOC_JS@
 */
export class @CLASS@ {
  constructor(session) {
    this.session = session;
  }

  /** @param model the URL of @MODEL@, or its bytes @param options see ort.InferenceSession.create */
  static async load(model, options = {}) {
    const session = await ort.InferenceSession.create(model, { executionProviders: ['wasm'], ...options });
    return new @CLASS@(session);
  }

  async run({ @INPUT_NAMES_JS@ }) {
    const inputs = { @INPUT_NAMES_JS@ };
    check(inputs);
    const feeds = {};
    for (const [name, [dtype]] of Object.entries(INPUTS)) {
      feeds[name] = new ort.Tensor(dtype, inputs[name].data, inputs[name].dims);
    }
    const result = await this.session.run(feeds);
    return Object.fromEntries(OUTPUTS.map((name) => [name, { data: result[name].data, dims: result[name].dims }]));
  }
}

/** Refuse what the model does not take: the runtime itself knows no bounds. */
function check(inputs) {
  const sizes = {};
  for (const [name, [dtype, shape]] of Object.entries(INPUTS)) {
    const { data, dims } = inputs[name];
    if (!(data instanceof ARRAYS[dtype]) || dims.length !== shape.length) {
      throw new Error(`${name} must be ${dtype} with ${shape.length} dimensions`);
    }
    shape.forEach(([symbol, low, high, scale, offset], axis) => {
      const size = dims[axis];
      if (size < low || (high !== null && size > high) || (size - offset) % scale !== 0) {
        throw new Error(`dimension ${axis} of ${name} is ${size}, outside ${low}..${high ?? ''}`);
      }
      const root = (size - offset) / scale;
      if (symbol !== null && (sizes[symbol] ??= root) !== root) {
        throw new Error(`dimension ${axis} of ${name} is ${size}: it must go with the other inputs' ${symbol}`);
      }
    });
  }
}
@LABELS_JS@
/** Run the bundle's self-test vectors. @param read path in the bundle -> its bytes (Uint8Array) */
export async function selfTest(read, log = console.log) {
  const test = JSON.parse(new TextDecoder().decode(await read('selftest/selftest.json')));
  const tolerances = test.tolerances['@TARGET@/@PRECISION@'];
  @LABELS_READ_JS@
  const model = await @CLASS@.load(await read('@MODEL@'), { externalData: await externalData(read) });
  const tensor = async (t) => {
    const bytes = await read(t.file);
    const buffer = bytes.buffer.slice(bytes.byteOffset, bytes.byteOffset + bytes.byteLength);
    return { data: new ARRAYS[t.dtype](buffer), dims: t.shape };
  };
  for (const call of test.calls) {
    const inputs = {};
    for (const t of call.inputs) inputs[t.name] = await tensor(t);
    const got = await model.run(inputs);
    for (const t of call.outputs) {
      const want = (await tensor(t)).data;
      const limit = tolerances[t.name];
      const top = want.reduce((most, x) => Math.max(most, Math.abs(Number(x))), 0);
      want.forEach((x, i) => {
        const error = Math.abs(Number(got[t.name].data[i]) - Number(x));
        if (!(error <= limit.atol + limit.rtol * Math.abs(Number(x)) + limit.scale * top)) {
          throw new Error(`${call.id}: ${t.name}[${i}] is off by ${error}`);
        }
      });
    }
    log(`ok: ${call.id}@DECIDE_JS@`);
  }
  log('self-test passed');
}

/** Weights that lie beside the model. */
async function externalData(read) {
  const files = @EXTERNAL_JSON@;
  return Promise.all(files.map(async ([path, file]) => ({ path, data: await read(file) })));
}
