//! The attribute `boxed` keeps what an async function is: its arguments, their lifetimes and the time at which they go.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use cenote_taskq::{BoxFuture, Runtime, boxed, yield_now};

/// Counts how many of its kind have been dropped.
struct Counted(Arc<AtomicU32>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

struct Shelf<'a> {
    words: Vec<&'a str>,
}

impl<'a> Shelf<'a> {
    /// The result lives as long as the words, not as long as the shelf.
    #[boxed]
    async fn at(&self, index: usize) -> Option<&'a str> {
        yield_now().await;
        self.words.get(index).copied()
    }

    /// The lifetime of the result is that of the call.
    #[boxed]
    async fn longest(&self, beside: &str) -> &str {
        yield_now().await;
        let longest = self.words.iter().copied().max_by_key(|word| word.len());
        longest.filter(|word| word.len() > beside.len()).unwrap_or_default()
    }

    #[boxed]
    async fn push(&mut self, mut word: &'a str, (from, to): (usize, usize)) {
        yield_now().await;
        word = &word[from..to];
        self.words.push(word);
    }
}

/// A type behind `&mut` keeps its own lifetime.
#[boxed]
async fn take_last(shelf: &mut Shelf<'_>) -> usize {
    yield_now().await;
    shelf.words.pop().map_or(0, str::len)
}

#[boxed]
async fn keep(_unused: Counted, dropped: Arc<AtomicU32>) -> u32 {
    yield_now().await;
    dropped.load(Ordering::Relaxed)
}

#[boxed]
async fn first<T: Clone + Send + Sync>(values: &[T]) -> Option<T> {
    values.first().cloned()
}

/// A trait that has trait objects, since its functions return boxed futures.
trait Shape: Send + Sync {
    #[boxed]
    async fn name(&self, prefix: &str) -> String;

    #[boxed]
    async fn area(&self) -> u32 {
        yield_now().await;
        1
    }
}

struct Square(u32);

impl Shape for Square {
    #[boxed]
    async fn name(&self, prefix: &str) -> String {
        yield_now().await;
        format!("{prefix}{}", self.0)
    }

    // An implementation may name the lifetime itself.
    fn area<'a>(&'a self) -> BoxFuture<'a, u32> {
        Box::pin(async move { self.0 * self.0 })
    }
}

struct Owner<'a> {
    words: &'a str,
    _counted: Counted,
}

impl<'a> Owner<'a> {
    /// Takes itself: its parts go when the future has ended, also those that the body does not name.
    #[boxed]
    async fn end(self, dropped: &AtomicU32) -> (&'a str, u32) {
        yield_now().await;
        (self.words, dropped.load(Ordering::Relaxed))
    }

    #[boxed]
    async fn end_unread(self, dropped: &AtomicU32) -> u32 {
        yield_now().await;
        dropped.load(Ordering::Relaxed)
    }
}

fn run<T: Send + 'static>(future: impl Future<Output = T> + Send) -> T {
    Runtime::real(Default::default()).expect("a runtime").block_on(future)
}

#[test]
fn arguments_and_results_have_the_lifetimes_of_an_async_function() {
    let text = String::from("alpha beta");
    run(async {
        let mut shelf = Shelf { words: vec![&text[..5]] };
        shelf.push(&text, (6, 10)).await;
        let word = shelf.at(1).await;
        assert_eq!(shelf.longest("four").await, "alpha");
        assert_eq!(shelf.longest("longer than all").await, "");
        assert_eq!(take_last(&mut shelf).await, 4);
        assert_eq!(take_last(&mut shelf).await, 5);
        drop(shelf);
        assert_eq!(word, Some("beta"));
        assert_eq!(first(&[7, 8]).await, Some(7));
    });
}

#[test]
fn an_argument_that_is_not_used_lives_until_the_end() {
    let dropped = Arc::new(AtomicU32::new(0));
    // Without references the future depends on nothing.
    let future: BoxFuture<'static, u32> = keep(Counted(dropped.clone()), dropped.clone());
    assert_eq!(dropped.load(Ordering::Relaxed), 0, "nothing is dropped before the future runs");
    assert_eq!(run(future), 0, "nor while it runs");
    assert_eq!(dropped.load(Ordering::Relaxed), 1);
    drop(keep(Counted(dropped.clone()), dropped.clone()));
    assert_eq!(dropped.load(Ordering::Relaxed), 2, "a future that never ran drops its arguments");
}

#[test]
fn traits_may_have_it_and_are_trait_objects() {
    run(async {
        let shape: Box<dyn Shape> = Box::new(Square(3));
        assert_eq!(shape.name("square ").await, "square 3");
        assert_eq!(shape.area().await, 9);
    });
}

#[test]
fn self_by_value_lives_as_long_as_the_future() {
    run(async {
        let dropped = Arc::new(AtomicU32::new(0));
        let text = String::from("words");
        let owner = || Owner { words: &text, _counted: Counted(dropped.clone()) };
        assert_eq!(owner().end(&dropped).await, ("words", 0));
        assert_eq!(dropped.load(Ordering::Relaxed), 1);
        assert_eq!(owner().end_unread(&dropped).await, 1);
        assert_eq!(dropped.load(Ordering::Relaxed), 2);
    });
}
