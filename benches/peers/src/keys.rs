//! A limiter for each key: what a key weighs, and what a permit costs under one key and under any of them.

use std::{fmt, fs, rc::Rc};

use crate::{
    BoxError, Column, Settings, Table,
    turns::{Row, by_one_thread, compare},
};

/// What a row holds once every key has been granted a permit.
///
/// `asked` is what the program asked of the allocator and has not given back, spare room included: exact, and the
/// same in every run. `resident` is how much more of the process is in memory, the allocator's own share
/// included: headers, gaps before aligned blocks, and what was freed on the way and kept, or left by a row before.
#[derive(Debug, Clone, Copy)]
struct Weight {
    asked: f64,
    blocks: f64,
    resident: Option<f64>,
}

/// Rows of limiters that hold the same keys, measured in turns.
pub struct Keys {
    keys: u32,
    /// Drawn evenly from all keys before anything is timed.
    order: Rc<[u32]>,
    rows: Vec<Row<2>>,
    weights: Vec<Option<Weight>>,
}

impl fmt::Debug for Keys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Keys")
            .field("keys", &self.keys)
            .field("rows", &self.rows.len())
            .finish_non_exhaustive()
    }
}

impl Keys {
    /// With no rows yet.
    pub fn new(keys: u32) -> Self {
        // Four draws a key, so that few of them are left out.
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        let draw = |_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            ((u128::from(state) * u128::from(keys)) >> 64) as u32
        };
        let order = (0..keys.saturating_mul(4)).map(draw).collect();
        Self { keys, order, rows: Vec::new(), weights: Vec::new() }
    }

    /// A row of what `make` makes: it takes a permit under a key, which is new when it is first named.
    pub fn row<O>(
        &mut self,
        name: &'static str,
        base: &'static str,
        make: impl FnOnce() -> O,
    ) -> Result<(), BoxError>
    where
        O: Fn(u64) -> bool + Clone + 'static,
    {
        let (before, mut op, mut granted) = (resident(), None, false);
        let asked = allocation_counter::measure(|| {
            let made = make();
            granted = (0..u64::from(self.keys)).all(&made);
            op = Some(made);
        });
        let op = op.filter(|_| granted).ok_or_else(|| format!("{name}: refused a new key"))?;
        let keys = f64::from(self.keys);
        let resident = before.zip(resident()).map(|(before, after)| (after - before) / keys);
        self.again(name, base, op);
        if let Some(weight) = self.weights.last_mut() {
            let (asked, blocks) = (asked.bytes_current as f64 / keys, asked.count_current as f64 / keys);
            *weight = Some(Weight { asked, blocks, resident });
        }
        Ok(())
    }

    /// A row of something else that is done with the keys of a row before.
    pub fn again(
        &mut self,
        name: &'static str,
        base: &'static str,
        op: impl Fn(u64) -> bool + Clone + 'static,
    ) {
        let one = op.clone();
        let hot = u64::from(self.keys / 2);
        let (order, mut next) = (Rc::clone(&self.order), 0);
        let any = move || {
            next = if next + 1 < order.len() { next + 1 } else { 0 };
            op(u64::from(order[next]))
        };
        self.rows.push(Row {
            name,
            base,
            ways: [Some(by_one_thread(move || one(hot))), Some(by_one_thread(any))],
        });
        self.weights.push(None);
    }

    /// What a key weighs, and nanoseconds a call with the ratio to the row's base.
    pub fn run(mut self, id: &'static str, title: &str, settings: Settings) -> Result<Table, BoxError> {
        let figures = compare(&mut self.rows, true, settings)?;
        let mut table = Table::new(
            id,
            title,
            [
                Column::new("asked of the allocator", "bytes a key", 1).plotted(),
                Column::new("in blocks", "a key", 2),
                Column::new("resident", "bytes a key", 1).plotted(),
                Column::new("one key", "ns", 1).plotted(),
                Column::new("× base", "", 2),
                Column::new("random keys", "ns", 1).plotted(),
                Column::new("× base", "", 2),
            ],
        );
        for ((row, figures), weight) in self.rows.iter().zip(figures).zip(self.weights) {
            let mut values = vec![
                weight.map(|weight| weight.asked),
                weight.map(|weight| weight.blocks),
                weight.and_then(|weight| weight.resident),
            ];
            values.extend(figures);
            table.row(row.name, values);
        }
        Ok(table)
    }
}

/// The bytes of this process that are in memory, where the system tells.
fn resident() -> Option<f64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    line.trim().strip_suffix("kB")?.trim().parse().ok().map(|kilobytes: f64| kilobytes * 1024.0)
}
