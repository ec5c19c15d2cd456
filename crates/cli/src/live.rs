//! Pools that this process serves: how the program opens them, and what it does for clients.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context as _, Result, bail};
use cenote_dmu::tx::TxTunables;
use cenote_server::{
    Call, Console, Ended, Handler, Pools, Recovery, Request, ServeTunables, ServerError, signals, suspended,
};
use cenote_spa::tunables::MountTunables;
use cenote_taskq::{Either, race};

use crate::context::{Context, Serving};
use crate::outcome::{FAILED, Outcome, causes, status_of};
use crate::output::Output;
use crate::writing::open_with_devices;

impl Console for Context {
    fn warn(&self, line: &str) {
        self.err(line);
    }

    fn note(&self, line: &str) {
        self.tell(line);
    }
}

/// The pools of this process: none yet. Where `ends_with_mounts`, a pool ends with the last of its mounts.
pub(crate) fn pools(context: &Context, ends_with_mounts: bool) -> Pools {
    let clients = Arc::new(Clients(context.clone()));
    Pools::new(context.handle().clone(), Arc::new(context.clone()), clients, ends_with_mounts)
}

/// Opens a pool to be written in the background, and takes commands for it, at `control` or at the usual place.
///
/// # Errors
/// It cannot be opened, another process has it, or nobody can listen at `control`.
pub(crate) async fn open(
    context: &Context,
    pools: &mut Pools,
    name: &str,
    recovery: Recovery,
    control: Option<&Path>,
) -> Result<()> {
    let (pool, devices) = unless_interrupted(context, name, open_with_devices(context, name)).await?;
    let given = context.tunables();
    let tunables = ServeTunables {
        tx: TxTunables::for_memory(context.memory_bytes()).with(&given),
        mounts: MountTunables::default().with(&given),
    };
    Ok(pools.add(pool, devices, tunables, recovery, control).await?)
}

/// Opens a pool, which may have to be watched for long before. The signals that are to end a server end it.
async fn unless_interrupted<T>(context: &Context, name: &str, open: impl Future<Output = Result<T>>) -> Result<T> {
    let mut signals = signals::ending()?;
    let closing = signals.handle();
    let waiting = context.handle().spawn_blocking(move || signals.forever().next());
    match race(Box::pin(open), waiting).await {
        Either::Left(opened) => {
            closing.close();
            opened
        }
        Either::Right(_) => bail!("interrupted while the pool '{name}' was being opened"),
    }
}

/// The clients of a pool of this process.
struct Clients(Context);

/// A client's command line.
struct Asked {
    context: Context,
    request: Box<dyn Serving>,
}

impl Handler for Clients {
    fn request(&self, form: serde_json::Value) -> Result<Box<dyn Request>, ServerError> {
        let sent = self.0.program().and_then(|program| program.sent(form));
        let request = sent.context("this is no request that this server knows");
        let request = request.map_err(|error| ServerError::Refused(causes(&error)))?;
        Ok(Box::new(Asked { context: self.0.clone(), request }))
    }
}

impl Request for Asked {
    fn is_for_suspended(&self) -> bool {
        self.request.is_for_suspended()
    }

    fn serve(self: Box<Self>, call: Call<'_>) -> Ended {
        let context = self.context.served_by(call.of, Output::to(call.out, call.err), call.input);
        let result = context.handle().block_on(serve(&context, self.request));
        let result = result.and_then(|outcome| Ok(context.output().flush().map(|()| outcome)?));
        let (status, error) = match result {
            Ok(Outcome::Good) => (0, None),
            Ok(Outcome::Failed) => (FAILED, None),
            Err(error) => (status_of(&error), Some(causes(&error))),
        };
        Ended { status, error, exports: context.is_to_end() }
    }
}

/// Does what a client asks of the process that has the pool.
async fn serve(context: &Context, request: Box<dyn Serving>) -> Result<Outcome> {
    let pool = context.served().cloned().filter(|_| !request.is_for_suspended());
    let work = request.serve(context);
    let outcome = match pool {
        // Clients that wait for devices would leave no room for one that says that they are back.
        Some(pool) => match race(suspended(&pool), work).await {
            Either::Left(error) => Err(error.into()),
            Either::Right(outcome) => outcome,
        },
        None => work.await,
    };
    // Blocks read of a view that was given up may be of several txgs, whatever came of it.
    let outcome = context.check_views().and(outcome);
    context.close_pools().await;
    outcome
}
