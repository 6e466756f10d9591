//! Draws the measured values as SVG.

use std::path::Path;

use plotters::prelude::*;

use crate::subject::{COPIES, OURS};
use crate::table::Table;
use crate::updates::KEPT;

type Drawn = Result<(), Box<dyn std::error::Error>>;

fn colour(subject: &str) -> RGBColor {
    match subject {
        OURS => RGBColor(11, 122, 117),
        COPIES => RGBColor(70, 90, 170),
        _ => RGBColor(214, 40, 40),
    }
}

/// One line of a plot: the subject and its points.
type Line = (String, Vec<(f64, f64)>);

/// Draws each plot for which there are rows.
pub fn draw(table: &Table, dir: &Path, label: &str) -> std::io::Result<()> {
    std::fs::create_dir_all(dir)?;
    let by_size = |prefix: &str| lines(table, prefix, |rest| rest.strip_suffix(" files")?.parse().ok());
    let plots = [
        (
            "update.svg",
            "Update, from the push to the link, by files in the tree",
            "ms",
            by_size("update of "),
        ),
        (
            "processor.svg",
            "Processor time of an update, by files in the tree",
            "ms",
            by_size("processor of it, "),
        ),
        ("space.svg", "Space of generations that are kept, in trees", "", kept(table)),
    ];
    for (file, title, unit, lines) in plots {
        if lines.iter().any(|(_, points)| points.len() > 1) {
            let path = dir.join(file);
            plot(&path, title, unit, label, &lines)
                .map_err(|error| std::io::Error::other(error.to_string()))?;
        }
    }
    Ok(())
}

/// For each subject, the medians of a family of rows, by the number in the rows' names.
fn lines(table: &Table, prefix: &str, number: fn(&str) -> Option<f64>) -> Vec<Line> {
    let rows = table.family(prefix);
    let of = |subject: &str| {
        let points =
            rows.iter().filter_map(|(row, rest)| Some((number(rest)?, table.spread(row, subject)?.0)));
        points.collect::<Vec<_>>()
    };
    table.subjects().into_iter().map(|subject| (subject.to_owned(), of(subject))).collect()
}

fn kept(table: &Table) -> Vec<Line> {
    let number = |rest: &str| rest.split(' ').next()?.parse().ok().filter(|count| *count <= KEPT as f64);
    lines(table, "space of ", number)
}

/// Draws one plot. Both axes are logarithmic if the x values span more than a factor of twenty.
fn plot(path: &Path, title: &str, unit: &str, label: &str, lines: &[Line]) -> Drawn {
    let area = SVGBackend::new(path, (720, 400)).into_drawing_area();
    area.fill(&WHITE)?;
    let points = || lines.iter().flat_map(|(_, points)| points);
    let most = |of: fn(&(f64, f64)) -> f64| points().map(of).fold(0.0, f64::max);
    let least = |of: fn(&(f64, f64)) -> f64| points().map(of).fold(f64::INFINITY, f64::min);
    let (x, y) = ((least(|p| p.0), most(|p| p.0)), (least(|p| p.1), most(|p| p.1)));
    let mut builder = ChartBuilder::on(&area);
    builder.caption(title, ("sans-serif", 18)).margin(14).x_label_area_size(42).y_label_area_size(64);
    macro_rules! chart {
        ($x:expr, $y:expr) => {{
            let mut chart = builder.build_cartesian_2d($x, $y)?;
            let mut mesh = chart.configure_mesh();
            mesh.x_labels(6).x_label_formatter(&|x| x.to_string()).y_label_formatter(&|y| y.to_string());
            mesh.x_desc(label).y_desc(unit).light_line_style(WHITE).draw()?;
            for (name, points) in lines.iter().filter(|(_, points)| !points.is_empty()) {
                let colour = colour(name);
                let line = LineSeries::new(points.iter().copied(), colour.stroke_width(2)).point_size(4);
                let legend = move |(x, y)| PathElement::new([(x, y), (x + 18, y)], colour.stroke_width(2));
                chart.draw_series(line)?.label(name).legend(legend);
            }
            let mut labels = chart.configure_series_labels();
            labels
                .position(SeriesLabelPosition::UpperLeft)
                .background_style(WHITE)
                .border_style(BLACK)
                .draw()?;
        }};
    }
    if x.1 > 20.0 * x.0 {
        chart!((x.0 * 0.8..x.1 * 1.2).log_scale(), (y.0 * 0.6..y.1 * 3.0).log_scale());
    } else {
        chart!(x.0..x.1, 0.0..y.1 * 1.2);
    }
    area.present()?;
    Ok(())
}
