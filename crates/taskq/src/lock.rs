//! Locks that may be held across an await.
//!
//! Both are a fair [`Semaphore`] beside the value. The guard takes the value out of its cell (a pointer's move) and puts
//! it back before it returns its permit, which keeps these free of unsafe code.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use crate::semaphore::{Permit, Semaphore};
use crate::sync::Mutex;

/// A mutual exclusion lock whose waiters are tasks; fair.
#[derive(Debug)]
pub struct AsyncMutex<T> {
    semaphore: Semaphore,
    /// Absent while a guard has it.
    cell: Mutex<Option<Box<T>>>,
}

impl<T> AsyncMutex<T> {
    /// A lock around `value`.
    pub fn new(value: T) -> AsyncMutex<T> {
        AsyncMutex { semaphore: Semaphore::new(1), cell: Mutex::new(Some(Box::new(value))) }
    }

    /// Waits for the lock.
    pub async fn lock(&self) -> AsyncMutexGuard<'_, T> {
        let permit = self.semaphore.acquire(1).await;
        self.guard(permit)
    }

    /// Takes the lock if it is free now.
    pub fn try_lock(&self) -> Option<AsyncMutexGuard<'_, T>> {
        Some(self.guard(self.semaphore.try_acquire(1)?))
    }

    fn guard<'a>(&'a self, permit: Permit<'a>) -> AsyncMutexGuard<'a, T> {
        let value = self.cell.lock().take();
        AsyncMutexGuard { cell: &self.cell, value, _permit: permit }
    }

    /// The value, the lock being consumed.
    pub fn into_inner(self) -> T {
        *self.cell.into_inner().expect("no guard outlives the lock")
    }
}

impl<T: Default> Default for AsyncMutex<T> {
    fn default() -> AsyncMutex<T> {
        AsyncMutex::new(T::default())
    }
}

/// The lock held. See [`AsyncMutex::lock`].
#[derive(Debug)]
#[must_use]
pub struct AsyncMutexGuard<'a, T> {
    cell: &'a Mutex<Option<Box<T>>>,
    value: Option<Box<T>>,
    // Dropped after the value is back: `Drop::drop` runs before the fields'.
    _permit: Permit<'a>,
}

impl<T> Deref for AsyncMutexGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.value.as_ref().expect("a guard has the value until it is dropped")
    }
}

impl<T> DerefMut for AsyncMutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        self.value.as_mut().expect("a guard has the value until it is dropped")
    }
}

impl<T> Drop for AsyncMutexGuard<'_, T> {
    fn drop(&mut self) {
        *self.cell.lock() = self.value.take();
    }
}

/// Permits of a read-write lock; a writer takes all, which bounds the readers at one time.
const READERS_MAX: u64 = 1 << 32;

/// A lock with many readers or one writer, whose waiters are tasks. Fair: a waiting writer holds back later readers.
#[derive(Debug)]
pub struct AsyncRwLock<T> {
    semaphore: Semaphore,
    /// Absent while a writer has it.
    cell: Mutex<Option<Arc<T>>>,
}

impl<T> AsyncRwLock<T> {
    /// A lock around `value`.
    pub fn new(value: T) -> AsyncRwLock<T> {
        AsyncRwLock { semaphore: Semaphore::new(READERS_MAX), cell: Mutex::new(Some(Arc::new(value))) }
    }

    /// Waits for shared access.
    pub async fn read(&self) -> AsyncReadGuard<'_, T> {
        let permit = self.semaphore.acquire(1).await;
        let value = self.cell.lock().clone();
        AsyncReadGuard { value: value.expect("a reader's permit excludes writers"), _permit: permit }
    }

    /// Waits for exclusive access.
    pub async fn write(&self) -> AsyncWriteGuard<'_, T> {
        let permit = self.semaphore.acquire(READERS_MAX).await;
        let value = self.cell.lock().take();
        AsyncWriteGuard { cell: &self.cell, value, _permit: permit }
    }
}

impl<T: Default> Default for AsyncRwLock<T> {
    fn default() -> AsyncRwLock<T> {
        AsyncRwLock::new(T::default())
    }
}

/// Shared access. See [`AsyncRwLock::read`]. Its share of the value is dropped before its permit returns (fields drop
/// in order), so a writer finds itself the only holder.
#[derive(Debug)]
#[must_use]
pub struct AsyncReadGuard<'a, T> {
    value: Arc<T>,
    _permit: Permit<'a>,
}

impl<T> Deref for AsyncReadGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

/// Exclusive access. See [`AsyncRwLock::write`].
#[derive(Debug)]
#[must_use]
pub struct AsyncWriteGuard<'a, T> {
    cell: &'a Mutex<Option<Arc<T>>>,
    value: Option<Arc<T>>,
    _permit: Permit<'a>,
}

impl<T> Deref for AsyncWriteGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.value.as_ref().expect("a guard has the value until it is dropped")
    }
}

impl<T> DerefMut for AsyncWriteGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        let value = self.value.as_mut().expect("a guard has the value until it is dropped");
        Arc::get_mut(value).expect("a writer's permits exclude readers")
    }
}

impl<T> Drop for AsyncWriteGuard<'_, T> {
    fn drop(&mut self) {
        *self.cell.lock() = self.value.take();
    }
}
