// a canvas to draw on: black on white, sent after every stroke
const canvas = element.querySelector("canvas"), pen = canvas.getContext("2d");

const clear = () => {
  pen.fillStyle = "white";
  pen.fillRect(0, 0, canvas.width, canvas.height);
};
clear();
[pen.lineWidth, pen.lineCap, pen.lineJoin] = [canvas.width / 11, "round", "round"];

const position = (event) => [
  (event.offsetX * canvas.width) / canvas.clientWidth,
  (event.offsetY * canvas.height) / canvas.clientHeight,
];

canvas.addEventListener("pointerdown", (event) => {
  canvas.setPointerCapture(event.pointerId);
  pen.beginPath();
  pen.moveTo(...position(event));
});
canvas.addEventListener("pointermove", (event) => {
  if (!canvas.hasPointerCapture(event.pointerId)) return;
  pen.lineTo(...position(event));
  pen.stroke();
});
canvas.addEventListener("pointerup", () => trigger("submit", { picture: canvas.toDataURL("image/png") }));
element.querySelector("button").addEventListener("click", () => {
  clear();
  trigger("clear");
});
