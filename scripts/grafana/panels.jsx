// Draws a dashboard with Grafana's own panels, from answers that Prometheus gave before: `window.drawing` is
// {dashboard, answers, from, to}, times in milliseconds, and `answers[i]` the series of panel `i`, each with a
// name, points and the step between them. `window.drawn[i]` then is the value axis of a chart. Grafana's server, its variables, links
// and migrations have no part in it; what it registers when it starts, and how its time series panel shows that
// there is no data, is repeated here.
import { useLayoutEffect } from "react";
import { createRoot } from "react-dom/client";
import {
  FieldType,
  ThemeContext,
  applyFieldOverrides,
  applyNullInsertThreshold,
  createTheme,
  dateTime,
  standardEditorsRegistry,
  standardFieldConfigEditorRegistry,
  toDataFrame,
} from "@grafana/data";
import { LegendDisplayMode } from "@grafana/schema";
import { GlobalStyles, PanelChrome, TimeSeries } from "@grafana/ui";
import "uplot/dist/uPlot.min.css";

const CELL = 38; // pixels: a row of Grafana's grid with its gap
const OPTIONS = ["unit", "min", "max", "decimals", "displayNameFromDS", "color", "noValue"];
const LEGEND = { displayMode: LegendDisplayMode.List, placement: "bottom", showLegend: true, calcs: [] };

const { dashboard, answers, from, to } = window.drawing;
const theme = createTheme({ colors: { mode: "light" } });
const timeRange = { from: dateTime(from), to: dateTime(to), raw: { from: dateTime(from), to: dateTime(to) } };
window.drawn = {};

standardEditorsRegistry.setInit(() => []);
standardFieldConfigEditorRegistry.setInit(() =>
  OPTIONS.map((id) => ({ id, path: id, name: id, process: (value) => value, shouldApply: () => true })),
);

function framesOf({ fieldConfig }, series) {
  const data = series.map(({ name, points, step }) =>
    toDataFrame({
      fields: [
        { name: "Time", type: FieldType.time, values: points.map(([time]) => time), config: { interval: step } },
        {
          name: "Value",
          type: FieldType.number,
          values: points.map(([, value]) => value),
          config: { displayNameFromDS: name, custom: fieldConfig.defaults.custom },
        },
      ],
    }),
  );
  const defaults = { color: { mode: "palette-classic" }, ...fieldConfig.defaults };
  return applyFieldOverrides({
    data,
    fieldConfig: { ...fieldConfig, defaults },
    theme,
    timeZone: "utc",
    replaceVariables: (text) => text,
  }).map((frame) => applyNullInsertThreshold({ frame, refFieldPseudoMin: from, refFieldPseudoMax: to }));
}

function Axis({ config, index }) {
  useLayoutEffect(() => {
    config.addHook("draw", (plot) => {
      const axis = plot.axes.find(({ scale }) => scale !== "x");
      const { min, max } = plot.scales[axis.scale];
      window.drawn[index] = { min, max, labels: axis._values };
    });
  }, [config, index]);
  return null;
}

function Chart({ panel, index, width, height }) {
  const frames = framesOf(panel, answers[index]);
  if (!frames.length) {
    return <div style={{ textAlign: "center", padding: 24 }}>{panel.fieldConfig.defaults.noValue ?? "No data"}</div>;
  }
  const legend = { ...LEGEND, ...panel.options?.legend };
  const view = { frames, timeRange, width, height, legend, timeZone: "utc", structureRev: 1, options: panel.options };
  return <TimeSeries {...view}>{(config) => <Axis config={config} index={index} />}</TimeSeries>;
}

function Panel({ panel, index }) {
  const { x, y, w, h } = panel.gridPos;
  const unit = innerWidth / 24;
  const [width, height] = [w * unit - 8, h * CELL - 8];
  const style = { position: "absolute", left: x * unit + 4, top: y * CELL + 56, width, height };
  if (panel.type === "row") {
    return <h2 style={{ ...style, fontSize: 18, paddingTop: 6 }}>{panel.title}</h2>;
  }
  return (
    <section style={style} data-panel={index}>
      <PanelChrome title={panel.title} description={panel.description} width={width} height={height}>
        {(innerWidth, innerHeight) => <Chart {...{ panel, index }} width={innerWidth} height={innerHeight} />}
      </PanelChrome>
    </section>
  );
}

function Dashboard() {
  const height = Math.max(...dashboard.panels.map(({ gridPos: { y, h } }) => y + h)) * CELL + 64;
  return (
    <ThemeContext.Provider value={theme}>
      <GlobalStyles />
      <main style={{ position: "relative", height, background: theme.colors.background.canvas }}>
        <h1 style={{ fontSize: 22, padding: "14px 8px" }}>{dashboard.title}</h1>
        {dashboard.panels.map((panel, index) => (
          <Panel key={index} panel={panel} index={index} />
        ))}
      </main>
    </ThemeContext.Provider>
  );
}

createRoot(document.getElementById("root")).render(<Dashboard />);
