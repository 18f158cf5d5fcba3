package dispatch

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/holdpoint/holdpoint"
	"github.com/holdpoint/holdpoint/internal/engine"
	"github.com/holdpoint/holdpoint/internal/payload"
	"github.com/holdpoint/holdpoint/internal/store"
)

// settleFor bounds how long an answer is carried to the store. Past it the open attempt makes the effect unknown.
const settleFor = 2 * time.Minute

// send leases what there is room for and sends each effect on its own.
func (d *Dispatcher) send(ctx context.Context) (bool, error) {
	room, busy := d.targets.room()
	if room == 0 {
		return false, nil
	}
	timeout, err := d.o.Engine.LongestTimeout(ctx)
	if err != nil {
		return false, err
	}
	tasks, err := d.o.Engine.LeaseEffects(ctx, d.owner, d.o.SendWindow+timeout+d.o.Margin, room, busy)
	for i := range tasks {
		t := &tasks[i]
		if !d.targets.take(t.Provider, t.Connector.Concurrency) {
			err = errors.Join(err, d.o.Engine.GiveBack(ctx, d.owner, t))
			continue
		}
		d.work.Go(func() { d.one(context.WithoutCancel(ctx), t) })
	}
	return len(tasks) == room, err
}

// one carries one effect from its lease to its settlement.
func (d *Dispatcher) one(ctx context.Context, t *engine.Task) {
	answered := sync.OnceFunc(func() {
		if d.targets.give(t.Provider) {
			poke(d.effects)
		}
	})
	defer func() {
		answered()
		if d.targets.end() {
			poke(d.effects)
		}
	}()
	log := d.o.Log.With("effect", t.ID, "run", t.RunID, "key_hash", payload.Hash([]byte(t.RunKeyT))[:16], "tenant", t.Tenant, "workflow", t.Workflow, "connector", t.ConnectorName(), "type", t.Type)
	c := d.connectors.of(t.Tenant, t.Connector)
	defer c.release()
	call, err := c.Prepare(t.Vars)
	if err != nil {
		if err := d.o.Engine.Refuse(ctx, d.owner, t, err); err != nil {
			log.ErrorContext(ctx, "refusal not recorded", "error", err)
		}
		return
	}
	d.o.Reach("dispatch.before_attempt")
	asked := time.Now()
	begun, ok, err := d.o.Engine.Begin(ctx, d.owner, t, call.WireHash(), d.o.SendWindow)
	if err != nil || !ok {
		if err != nil {
			log.ErrorContext(ctx, "attempt not begun", "error", err)
		}
		return
	}
	// send_before is the database's; on this machine's clock it is no later than the window after we asked.
	d.o.Reach("dispatch.attempt_committed")
	outcome := call.Send(ctx, asked.Add(d.o.SendWindow))
	d.o.Reach("dispatch.answer_received")
	d.targets.learn(t.Provider, outcome)
	answered() // the provider has a place again while the outcome is on its way to the store
	settled, err := d.settle(ctx, t, begun, outcome)
	log = log.With("attempt", begun.ID, "number", begun.Number, "result", outcome.Result, "phase", outcome.Phase, "class", outcome.Class,
		"status", outcome.Status, "external_id", outcome.ProviderID, "took_ms", outcome.Took.Milliseconds(), "reference", t.Reference)
	if err != nil {
		log.ErrorContext(ctx, "attempt not settled", "error", err)
		return
	}
	log.InfoContext(ctx, "attempt", "state", settled.Effect.State, "hold", settled.Effect.Hold, "possibly_committed", settled.Effect.PossiblyCommitted,
		"lost", settled.Lost, "run_ended", settled.RunEnded)
}

// settle carries the answer to the store and does not give up at the first fault: the provider has answered, and only
// this process knows what.
func (d *Dispatcher) settle(ctx context.Context, t *engine.Task, a store.BegunAttempt, o holdpoint.Outcome) (store.Settled, error) {
	ctx, cancel := context.WithTimeout(ctx, settleFor)
	defer cancel()
	for wait := 50 * time.Millisecond; ; wait = min(2*wait, 5*time.Second) {
		s, err := d.o.Engine.Settle(ctx, d.owner, t, a, o)
		if err == nil || ctx.Err() != nil {
			return s, err
		}
		timer := time.NewTimer(wait)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return s, err
		}
	}
}

// lookUp asks providers what became of unknown effects.
func (d *Dispatcher) lookUp(ctx context.Context) (bool, error) {
	const batch = 16
	timeout, err := d.o.Engine.LongestTimeout(ctx)
	if err != nil {
		return false, err
	}
	tasks, err := d.o.Engine.LeaseLookups(ctx, d.owner, timeout+d.o.Margin, batch)
	for i := range tasks {
		t := &tasks[i]
		d.work.Go(func() {
			ctx := context.WithoutCancel(ctx)
			c := d.connectors.of(t.Tenant, t.Connector)
			defer c.release()
			d.o.Reach("dispatch.before_look_up")
			asked := time.Now()
			f := c.Find(ctx, t.Vars)
			d.o.Reach("dispatch.look_up_answered")
			settled, err := d.o.Engine.SettleLookup(ctx, d.owner, t, f, time.Since(asked))
			if err != nil {
				d.o.Log.ErrorContext(ctx, "look-up not recorded", "effect", t.ID, "run", t.RunID, "error", err)
				return
			}
			d.o.Log.InfoContext(ctx, "look-up", "effect", t.ID, "run", t.RunID, "found", f.State, "state", settled.Effect.State)
			if settled.Effect.State == holdpoint.EffectPending {
				poke(d.effects)
			}
		})
	}
	return len(tasks) == batch, err
}
