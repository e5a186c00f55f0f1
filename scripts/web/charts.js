// What the operators' view imports as "vendor/charts.js".
export { default as uPlot } from "uplot";
