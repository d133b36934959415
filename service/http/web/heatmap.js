// Paint a matrix of attention weights on a canvas: rows read, columns are read, square-root colour scale.

// From the background to the strongest colour; light on dark and dark on light, one hue family, so that the
// order of the colours is the order of their lightness (and survives every kind of colour vision and print).
const SCALES = {
  light: [[251, 249, 244], [205, 224, 219], [122, 176, 178], [45, 117, 136], [18, 62, 89], [10, 28, 51]],
  dark: [[22, 28, 36], [29, 58, 77], [38, 103, 117], [88, 158, 148], [190, 208, 158], [255, 240, 190]],
};

export const isDark = () =>
  document.documentElement.dataset.theme
    ? document.documentElement.dataset.theme === "dark"
    : matchMedia("(prefers-color-scheme: dark)").matches;

function colourTable() {
  const stops = SCALES[isDark() ? "dark" : "light"];
  const table = new Uint8ClampedArray(256 * 3);
  for (let i = 0; i < 256; i++) {
    const place = (i / 255) * (stops.length - 1);
    const below = Math.min(Math.floor(place), stops.length - 2);
    for (let c = 0; c < 3; c++) table[3 * i + c] = stops[below][c] + (place - below) * (stops[below + 1][c] - stops[below][c]);
  }
  return table;
}

/** One canvas pixel per cell; CSS scales it up with sharp edges. `matrix` has count × count weights. */
export function paint(canvas, matrix, count) {
  canvas.width = count;
  canvas.height = count;
  const largest = Math.max(1e-12, matrix.reduce((a, b) => (b > a ? b : a), 0));
  const table = colourTable();
  const image = new ImageData(count, count);
  for (let cell = 0; cell < count * count; cell++) {
    const i = 3 * Math.round(255 * Math.sqrt(matrix[cell] / largest));
    image.data.set([table[i], table[i + 1], table[i + 2], 255], 4 * cell);
  }
  canvas.getContext("2d").putImageData(image, 0, 0);
}
