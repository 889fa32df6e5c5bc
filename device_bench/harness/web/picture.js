// From a picture file to the model's input, as the model's contract says.

/**
 * The resize of Pillow for 8-bit pixels (Resample.c): a triangle or box filter that grows with the reduction, fixed-point
 * weights, rounded to 8 bits after each direction.
 */
export function resize(pixels, width, height, channels, toWidth, toHeight, method) {
  const wide = width === toWidth ? pixels : pass(pixels, width, height, channels, toWidth, method, true);
  return height === toHeight ? wide : pass(wide, toWidth, height, channels, toHeight, method, false);
}

const PRECISION = 22;

function weights(from, to, method) {
  const scale = from / to;
  const stretch = Math.max(scale, 1);
  const support = (method === 'box' ? 0.5 : 1) * stretch;
  const filter = method === 'box' ? (x) => (x > -0.5 && x <= 0.5 ? 1 : 0) : (x) => Math.max(0, 1 - Math.abs(x));
  return Array.from({ length: to }, (_, i) => {
    const center = (i + 0.5) * scale;
    const first = Math.max(0, Math.trunc(center - support + 0.5));
    const last = Math.min(from, Math.trunc(center + support + 0.5));
    const raw = Array.from({ length: last - first }, (_, k) => filter((k + first - center + 0.5) / stretch));
    const sum = raw.reduce((a, b) => a + b, 0);
    return { first, values: raw.map((w) => Math.trunc(0.5 + (w / sum) * 2 ** PRECISION)) };
  });
}

function pass(pixels, width, height, channels, to, method, horizontal) {
  const from = horizontal ? width : height;
  const lines = horizontal ? height : width;
  const out = new Uint8ClampedArray(lines * to * channels);
  const step = horizontal ? channels : width * channels;
  const table = weights(from, to, method);
  for (let line = 0; line < lines; line++) {
    const source = horizontal ? line * width * channels : line * channels;
    for (let i = 0; i < to; i++) {
      const { first, values } = table[i];
      const target = horizontal ? (line * to + i) * channels : (i * lines + line) * channels;
      for (let c = 0; c < channels; c++) {
        let sum = 2 ** (PRECISION - 1);
        let at = source + first * step + c;
        for (const weight of values) {
          sum += pixels[at] * weight;
          at += step;
        }
        out[target + c] = Math.floor(sum / 2 ** PRECISION);
      }
    }
  }
  return out;
}

/** A file's pixels on white, as {pixels: gray or RGB, 8 bits each, width, height, channels} */
export async function decode(file, color) {
  const bitmap = await createImageBitmap(file);
  const canvas = new OffscreenCanvas(bitmap.width, bitmap.height);
  const context = canvas.getContext('2d', { willReadFrequently: true });
  context.fillStyle = '#fff';
  context.fillRect(0, 0, canvas.width, canvas.height);
  context.drawImage(bitmap, 0, 0);
  bitmap.close();
  const { data, width, height } = context.getImageData(0, 0, canvas.width, canvas.height);
  const channels = color === 'gray' ? 1 : 3;
  const pixels = new Uint8ClampedArray(width * height * channels);
  const order = color === 'BGR' ? [2, 1, 0] : [0, 1, 2];
  for (let i = 0; i < width * height; i++) {
    if (channels === 1) {
      // Pillow's conversion to "L": ITU-R 601-2, in fixed point.
      pixels[i] = (data[4 * i] * 19595 + data[4 * i + 1] * 38470 + data[4 * i + 2] * 7471 + 0x8000) >> 16;
    } else {
      order.forEach((from, to) => { pixels[3 * i + to] = data[4 * i + from]; });
    }
  }
  return { pixels, width, height, channels };
}

/**
 * The model's input.
 *
 * @param picture decoded: see decode()
 * @param spec {width, height, layout, color, mean, std, dark, light, method, shape}
 * @returns {data: Float32Array, dims, seen: the resized 8-bit pixels}
 */
export function prepare(picture, spec) {
  const { channels } = picture;
  const seen = resize(
    picture.pixels, picture.width, picture.height, channels, spec.width, spec.height, spec.method,
  );
  const area = spec.width * spec.height;
  const data = new Float32Array(area * channels);
  const planar = spec.layout.indexOf('C') < spec.layout.indexOf('H');
  for (let i = 0; i < area; i++) {
    for (let c = 0; c < channels; c++) {
      const raw = spec.dark + ((spec.light - spec.dark) * seen[i * channels + c]) / 255;
      const value = (raw - (spec.mean[c] ?? 0)) / (spec.std[c] ?? 1);
      data[planar ? c * area + i : i * channels + c] = value;
    }
  }
  return { data, dims: spec.shape, seen };
}

/** The best classes. @returns [{label, score, share}], best first; share: of the best one's weight, 0..1 */
export function best(scores, labels, count = 5) {
  const order = Array.from(scores, (score, index) => ({ score: Number(score), label: labels[index] ?? `class ${index}` }));
  order.sort((a, b) => b.score - a.score);
  return order.slice(0, count).map((row) => ({ ...row, share: Math.exp(row.score - order[0].score) }));
}
