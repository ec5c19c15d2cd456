//! A report as one page that needs nothing but itself: HTML with its style and its pictures (SVG) inside.

use std::fmt::Write as _;

use crate::report::{Plot, Report, short};

const STYLE: &str = "\
body{font:15px/1.45 system-ui,sans-serif;max-width:70em;margin:2em auto;padding:0 1em;color:#1a1c20;background:#fff}\
h1{font-size:1.6em}h2{margin-top:2.2em;border-bottom:1px solid #d5d9e0}\
table{border-collapse:collapse;margin:1em 0;font-variant-numeric:tabular-nums}\
caption{text-align:left;font-weight:600;padding:.3em 0}\
th,td{padding:.22em .8em;border-bottom:1px solid #e4e7ec;text-align:right}th:first-child,td:first-child{text-align:left}tbody td:first-child{min-width:11em}\
thead th{border-bottom:2px solid #9aa3b2;vertical-align:bottom}\
.met{color:#10691f}.not{color:#a8201a;font-weight:600}svg{display:block;margin:1em 0;max-width:100%}\
@media(prefers-color-scheme:dark){body{background:#15171b;color:#e3e6ea}th,td{border-color:#2d323a}\
svg text{fill:#e3e6ea}.met{color:#6fcf7f}.not{color:#ff8d85}}";
/// Colours that people with any colour vision tell apart (Okabe and Ito's).
const COLOURS: [&str; 7] = ["#999999", "#e69f00", "#56b4e9", "#0072b2", "#009e73", "#d55e00", "#cc79a7"];

/// A picture's sizes, and its margins.
const WIDTH: f64 = 900.0;
const HEIGHT: f64 = 300.0;
const LEFT: f64 = 70.0;
const TOP: f64 = 46.0;
const BOTTOM: f64 = 40.0;

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

impl Report {
    /// As one page of HTML.
    #[must_use]
    pub fn html(&self) -> String {
        let mut out = String::from("<!doctype html><html lang=\"en\"><meta charset=\"utf-8\">");
        let _ = write!(out, "<meta name=\"viewport\" content=\"width=device-width\"><title>cenote bench</title>");
        let _ = write!(out, "<style>{STYLE}</style><h1>cenote bench</h1>");
        let _ = write!(out, "<p><code>{}</code>, {}</p><ul>", escape(&self.command), escape(&self.date));
        for (name, value) in &self.machine {
            let _ = write!(out, "<li>{}: {}</li>", escape(name), escape(value));
        }
        out.push_str("</ul>");
        for suite in &self.suites {
            let _ = write!(out, "\n<h2>{}: {}</h2>", escape(&suite.name), escape(&suite.title));
            if !suite.targets.is_empty() {
                out.push_str("<table><caption>Targets</caption><tbody>");
            }
            for target in &suite.targets {
                let (class, word) = if target.met { ("met", "met") } else { ("not", "not met") };
                let (wanted, found) = (escape(&target.wanted), escape(&target.found));
                let _ = write!(out, "<tr><td>{wanted}</td><td>{found}</td><td class=\"{class}\">{word}</td></tr>");
            }
            if !suite.targets.is_empty() {
                out.push_str("</tbody></table>");
            }
            for plot in &suite.plots {
                out.push_str(&bars(plot));
            }
            for table in &suite.tables {
                let _ = write!(out, "\n<table><caption>{}</caption><thead><tr>", escape(&table.title));
                for name in &table.columns {
                    let _ = write!(out, "<th>{}</th>", escape(name));
                }
                out.push_str("</tr></thead><tbody>");
                for row in &table.rows {
                    out.push_str("<tr>");
                    for cell in row {
                        let _ = write!(out, "<td>{}</td>", escape(cell));
                    }
                    out.push_str("</tr>");
                }
                out.push_str("</tbody></table>");
            }
            for note in &suite.notes {
                let _ = write!(out, "<p>{}</p>", escape(note));
            }
        }
        out.push_str("</html>\n");
        out
    }
}

/// Groups of bars, a colour for each series.
fn bars(plot: &Plot) -> String {
    let highest = plot.series.iter().flat_map(|(_, values)| values).flatten().copied();
    let highest = highest.fold(0.0, f64::max);
    if highest <= 0.0 || plot.groups.is_empty() {
        return String::new();
    }
    let step = tick(highest);
    let ceiling = (highest / step).ceil() * step;
    let y = |value: f64| TOP + (HEIGHT - TOP - BOTTOM) * (1.0 - value / ceiling);
    let mut out = format!(
        "\n<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" width=\"{WIDTH}\" role=\"img\" font-family=\"system-ui,sans-serif\" \
         font-size=\"12\"><title>{0}</title><text x=\"{LEFT}\" y=\"15\" font-weight=\"600\">{0} ({1})</text>",
        escape(&plot.title),
        escape(&plot.unit)
    );
    let mut legend = LEFT;
    for (index, (name, _)) in plot.series.iter().enumerate() {
        let colour = COLOURS[index % COLOURS.len()];
        let _ = write!(out, "<rect x=\"{legend:.0}\" y=\"22\" width=\"10\" height=\"10\" fill=\"{colour}\"/>");
        let _ = write!(out, "<text x=\"{:.0}\" y=\"31\">{}</text>", legend + 14.0, escape(name));
        legend += 30.0 + 7.0 * name.chars().count() as f64;
    }
    let mut value = 0.0;
    while value <= ceiling * 1.0001 {
        let at = y(value);
        let _ = write!(out, "<line x1=\"{LEFT}\" x2=\"{WIDTH}\" y1=\"{at:.1}\" y2=\"{at:.1}\" stroke=\"#8884\"/>");
        let (x, at) = (LEFT - 6.0, at + 4.0);
        let _ = write!(out, "<text x=\"{x}\" y=\"{at:.1}\" text-anchor=\"end\">{}</text>", short(value));
        value += step;
    }
    let group = (WIDTH - LEFT) / plot.groups.len() as f64;
    let bar = (group * 0.82 / plot.series.len().max(1) as f64).min(44.0);
    for (place, name) in plot.groups.iter().enumerate() {
        let middle = LEFT + group * (place as f64 + 0.5);
        let start = middle - bar * plot.series.len() as f64 / 2.0;
        for (index, (series, values)) in plot.series.iter().enumerate() {
            let Some(value) = values.get(place).copied().flatten() else { continue };
            let (x, top) = (start + bar * index as f64, y(value));
            let (height, colour) = ((HEIGHT - BOTTOM - top).max(0.0), COLOURS[index % COLOURS.len()]);
            let _ = write!(
                out,
                "<rect x=\"{x:.1}\" y=\"{top:.1}\" width=\"{:.1}\" height=\"{height:.1}\" fill=\"{colour}\"><title>{}, {}: {} \
                 {}</title></rect>",
                bar * 0.92,
                escape(name),
                escape(series),
                short(value),
                escape(&plot.unit)
            );
        }
        let at = HEIGHT - BOTTOM + 18.0;
        let _ = write!(out, "<text x=\"{middle:.1}\" y=\"{at}\" text-anchor=\"middle\">{}</text>", escape(name));
    }
    out.push_str("</svg>");
    out
}

/// A distance of lines that gives four to ten of them and round numbers.
fn tick(highest: f64) -> f64 {
    let unit = 10_f64.powf((highest / 4.0).log10().floor());
    [5.0, 2.0, 1.0].into_iter().map(|factor| factor * unit).find(|step| highest / step >= 4.0).unwrap_or(unit)
}
