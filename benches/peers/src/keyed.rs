//! Measures limiters with one state per key: the memory per key, and the duration of a grant.

use std::{fmt, fs, rc::Rc};

use crate::{
    BoxError, Column, Settings, Table,
    interleaved::{Row, compare, on_one_thread},
};

/// The memory per key, measured after every key got one permit.
#[derive(Debug, Clone, Copy)]
struct KeyMemory {
    /// The allocated bytes per key, including unused capacity. This figure is exact and the same in every run.
    allocated: f64,
    /// The number of heap allocations per key.
    blocks: f64,
    /// The growth of the process's resident memory per key. This figure includes the allocator's headers, alignment
    /// gaps and freed memory that the allocator kept.
    resident: Option<f64>,
}

/// Compares limiters that hold the same keys. The rows are interleaved.
pub struct KeyedComparison {
    keys: u32,
    /// The keys in the order of the calls, drawn at random before the measurement.
    order: Rc<[u32]>,
    rows: Vec<Row<2>>,
    memory: Vec<Option<KeyMemory>>,
}

impl fmt::Debug for KeyedComparison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyedComparison")
            .field("keys", &self.keys)
            .field("rows", &self.rows.len())
            .finish_non_exhaustive()
    }
}

impl KeyedComparison {
    /// Creates a comparison without rows.
    pub fn new(keys: u32) -> Self {
        // The list has four random draws per key, so that almost every key occurs.
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        let draw = |_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            ((u128::from(state) * u128::from(keys)) >> 64) as u32
        };
        let order = (0..keys.saturating_mul(4)).map(draw).collect();
        Self { keys, order, rows: Vec::new(), memory: Vec::new() }
    }

    /// Adds a row for a limiter. `make` returns a function that acquires a permit for a key. The first call with a key
    /// creates the key's state.
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
        let heap = allocation_counter::measure(|| {
            let acquire = make();
            granted = (0..u64::from(self.keys)).all(&acquire);
            op = Some(acquire);
        });
        let op =
            op.filter(|_| granted).ok_or_else(|| format!("{name}: the first permit of a key was refused"))?;
        let keys = f64::from(self.keys);
        let resident = before.zip(resident()).map(|(before, after)| (after - before) / keys);
        self.row_on_same_keys(name, base, op);
        if let Some(memory) = self.memory.last_mut() {
            let (allocated, blocks) = (heap.bytes_current as f64 / keys, heap.count_current as f64 / keys);
            *memory = Some(KeyMemory { allocated, blocks, resident });
        }
        Ok(())
    }

    /// Adds a row for another operation on the limiter and keys of an earlier row.
    pub fn row_on_same_keys(
        &mut self,
        name: &'static str,
        base: &'static str,
        op: impl Fn(u64) -> bool + Clone + 'static,
    ) {
        let same_key = op.clone();
        let key = u64::from(self.keys / 2);
        let (order, mut next) = (Rc::clone(&self.order), 0);
        let random_key = move || {
            next = if next + 1 < order.len() { next + 1 } else { 0 };
            op(u64::from(order[next]))
        };
        self.rows.push(Row {
            name,
            base,
            setups: [Some(on_one_thread(move || same_key(key))), Some(on_one_thread(random_key))],
        });
        self.memory.push(None);
    }

    /// Measures the memory per key, the nanoseconds per call, and the ratio to the row's base.
    pub fn run(mut self, id: &'static str, title: &str, settings: Settings) -> Result<Table, BoxError> {
        let figures = compare(&mut self.rows, true, settings)?;
        let mut table = Table::new(
            id,
            title,
            [
                Column::new("allocated", "bytes per key", 1).plotted(),
                Column::new("allocations", "per key", 2),
                Column::new("resident", "bytes per key", 1).plotted(),
                Column::new("same key", "ns", 1).plotted(),
                Column::new("× base", "", 2),
                Column::new("random keys", "ns", 1).plotted(),
                Column::new("× base", "", 2),
            ],
        );
        for ((row, figures), memory) in self.rows.iter().zip(figures).zip(self.memory) {
            let mut values = vec![
                memory.map(|memory| memory.allocated),
                memory.map(|memory| memory.blocks),
                memory.and_then(|memory| memory.resident),
            ];
            values.extend(figures);
            table.row(row.name, values);
        }
        Ok(table)
    }
}

/// Returns the resident memory of this process in bytes, or `None` if the operating system does not report it.
fn resident() -> Option<f64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    line.trim().strip_suffix("kB")?.trim().parse().ok().map(|kilobytes: f64| kilobytes * 1024.0)
}
