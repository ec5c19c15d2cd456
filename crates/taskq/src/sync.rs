//! The synchronous primitives of the engine, behind one name so that a model checker can take their place.
//!
//! Normally these are parking_lot's and the standard library's. Under `--cfg loom` and `--cfg shuttle` they are the
//! checkers' own, so that the protocols built on them are explored over all (loom) or many random (shuttle)
//! interleavings. The interface is parking_lot's: no poisoning, `lock()` gives the guard.
//!
//! A guard of these locks is never held across an await; `clippy::await_holding_lock` denies it for the guards it
//! knows. A lock that must be held across an await is an [`AsyncMutex`](crate::AsyncMutex).

#[cfg(not(any(loom, shuttle)))]
mod imp {
    pub use parking_lot::{MutexGuard, RwLockReadGuard, RwLockWriteGuard};

    /// Atomic integers and fences.
    pub mod atomic {
        pub use std::sync::atomic::*;
    }

    /// A mutual exclusion lock.
    #[derive(Default, Debug)]
    pub struct Mutex<T: ?Sized>(parking_lot::Mutex<T>);

    impl<T> Mutex<T> {
        /// A lock around `value`.
        pub const fn new(value: T) -> Self {
            Mutex(parking_lot::Mutex::new(value))
        }

        /// The value, the lock being consumed.
        pub fn into_inner(self) -> T {
            self.0.into_inner()
        }
    }

    impl<T: ?Sized> Mutex<T> {
        /// Waits for the lock.
        pub fn lock(&self) -> MutexGuard<'_, T> {
            self.0.lock()
        }

        /// Takes the lock if it is free now.
        pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
            self.0.try_lock()
        }

        /// The value; exclusive access proves that nobody holds the lock.
        pub fn get_mut(&mut self) -> &mut T {
            self.0.get_mut()
        }
    }

    /// A lock with many readers or one writer.
    #[derive(Default, Debug)]
    pub struct RwLock<T: ?Sized>(parking_lot::RwLock<T>);

    impl<T> RwLock<T> {
        /// A lock around `value`.
        pub const fn new(value: T) -> Self {
            RwLock(parking_lot::RwLock::new(value))
        }
    }

    impl<T: ?Sized> RwLock<T> {
        /// Waits for shared access.
        pub fn read(&self) -> RwLockReadGuard<'_, T> {
            self.0.read()
        }

        /// Waits for exclusive access.
        pub fn write(&self) -> RwLockWriteGuard<'_, T> {
            self.0.write()
        }
    }

    /// A condition variable.
    #[derive(Default, Debug)]
    pub struct Condvar(parking_lot::Condvar);

    impl Condvar {
        /// A condition with no waiters.
        pub const fn new() -> Self {
            Condvar(parking_lot::Condvar::new())
        }

        /// Releases the lock, waits for a notification, takes the lock again.
        pub fn wait<'a, T>(&self, mut guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
            self.0.wait(&mut guard);
            guard
        }

        /// As [`Condvar::wait`], for at most `timeout`; whether that ran out.
        pub fn wait_for<'a, T>(
            &self,
            mut guard: MutexGuard<'a, T>,
            timeout: std::time::Duration,
        ) -> (MutexGuard<'a, T>, bool) {
            let result = self.0.wait_for(&mut guard, timeout);
            (guard, result.timed_out())
        }

        /// Wakes one waiter.
        pub fn notify_one(&self) {
            self.0.notify_one();
        }

        /// Wakes every waiter.
        pub fn notify_all(&self) {
            self.0.notify_all();
        }
    }
}

#[cfg(any(loom, shuttle))]
mod imp {
    #[cfg(loom)]
    use loom::sync as checked;
    #[cfg(shuttle)]
    use shuttle::sync as checked;

    pub use checked::{MutexGuard, RwLockReadGuard, RwLockWriteGuard};

    /// Atomic integers and fences.
    pub mod atomic {
        pub use super::checked::atomic::*;
    }

    /// A mutual exclusion lock.
    #[derive(Debug)]
    pub struct Mutex<T>(checked::Mutex<T>);

    impl<T: Default> Default for Mutex<T> {
        fn default() -> Self {
            Mutex::new(T::default())
        }
    }

    impl<T> Mutex<T> {
        /// A lock around `value`.
        pub fn new(value: T) -> Self {
            Mutex(checked::Mutex::new(value))
        }

        /// The value, the lock being consumed.
        pub fn into_inner(self) -> T {
            self.0.into_inner().unwrap_or_else(|poisoned| poisoned.into_inner())
        }

        /// Waits for the lock.
        pub fn lock(&self) -> MutexGuard<'_, T> {
            self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
        }

        /// Takes the lock if it is free now.
        pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
            self.0.try_lock().ok()
        }

        /// The value; exclusive access proves that nobody holds the lock.
        pub fn get_mut(&mut self) -> &mut T {
            self.0.get_mut().unwrap_or_else(|poisoned| poisoned.into_inner())
        }
    }

    /// A lock with many readers or one writer.
    #[derive(Debug)]
    pub struct RwLock<T>(checked::RwLock<T>);

    impl<T: Default> Default for RwLock<T> {
        fn default() -> Self {
            RwLock::new(T::default())
        }
    }

    impl<T> RwLock<T> {
        /// A lock around `value`.
        pub fn new(value: T) -> Self {
            RwLock(checked::RwLock::new(value))
        }

        /// Waits for shared access.
        pub fn read(&self) -> RwLockReadGuard<'_, T> {
            self.0.read().unwrap_or_else(|poisoned| poisoned.into_inner())
        }

        /// Waits for exclusive access.
        pub fn write(&self) -> RwLockWriteGuard<'_, T> {
            self.0.write().unwrap_or_else(|poisoned| poisoned.into_inner())
        }
    }

    /// A condition variable.
    #[derive(Debug)]
    pub struct Condvar(checked::Condvar);

    impl Default for Condvar {
        fn default() -> Self {
            Condvar::new()
        }
    }

    impl Condvar {
        /// A condition with no waiters.
        pub fn new() -> Self {
            Condvar(checked::Condvar::new())
        }

        /// Releases the lock, waits for a notification, takes the lock again.
        pub fn wait<'a, T>(&self, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
            self.0.wait(guard).unwrap_or_else(|poisoned| poisoned.into_inner())
        }

        /// As [`Condvar::wait`]; a checker has no clock, so the time limit is not modelled.
        pub fn wait_for<'a, T>(
            &self,
            guard: MutexGuard<'a, T>,
            _timeout: std::time::Duration,
        ) -> (MutexGuard<'a, T>, bool) {
            (self.wait(guard), false)
        }

        /// Wakes one waiter.
        pub fn notify_one(&self) {
            self.0.notify_one();
        }

        /// Wakes every waiter.
        pub fn notify_all(&self) {
            self.0.notify_all();
        }
    }
}

pub use imp::*;
