// Package dispatch runs the loops: send effects, look up unknown ones, deliver messages, and move what time has moved.
// It is the only caller of connectors. A loop wakes at once on a hint and otherwise polls; the poll is the truth.
package dispatch

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/holdpoint/holdpoint/connector/httpcall"
	"github.com/holdpoint/holdpoint/internal/egress"
	"github.com/holdpoint/holdpoint/internal/engine"
	"github.com/holdpoint/holdpoint/internal/policy"
)

// Options tune the loops; zero values are the defaults named.
type Options struct {
	Engine     *engine.Engine
	Secrets    policy.Secrets
	Guard      *egress.Guard
	Wake       <-chan string // hints of what was committed; nil polls only
	Log        *slog.Logger  // nil discards
	Poll       time.Duration // 1s
	SendWindow time.Duration // 5s: from the attempt row to the first byte; later the write fails before it
	Margin     time.Duration // 5s: what a lease outlasts window and timeout by
	InFlight   int           // 1024 effects at once, of each provider as many as its policy allows
	Reach      func(point string)
	Connect    func(httpcall.Config) Link // how a connector reaches its provider; nil: over HTTP
}

// Dispatcher owns the loops of one process.
type Dispatcher struct {
	o          Options
	owner      string
	connectors *pool
	targets    *targets
	effects    chan struct{} // wakes the send loop
	messages   chan struct{}
	stop       context.CancelFunc
	loops      sync.WaitGroup
	work       sync.WaitGroup
}

// New makes a dispatcher; Start runs it.
func New(o Options) *Dispatcher {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Reach == nil {
		o.Reach = func(string) {}
	}
	o.Poll, o.SendWindow, o.Margin = orDefault(o.Poll, time.Second), orDefault(o.SendWindow, 5*time.Second), orDefault(o.Margin, 5*time.Second)
	if o.Connect == nil {
		o.Connect = func(c httpcall.Config) Link { return httpcall.New(c) }
	}
	if o.InFlight == 0 {
		o.InFlight = 1024
	}
	return &Dispatcher{o: o, owner: uuid.NewString(), connectors: &pool{o: o, known: map[string]*pooled{}}, targets: newTargets(o.InFlight),
		effects: make(chan struct{}, 1), messages: make(chan struct{}, 1), stop: func() {}}
}

func orDefault(d, otherwise time.Duration) time.Duration {
	if d == 0 {
		return otherwise
	}
	return d
}

// Start begins the loops.
func (d *Dispatcher) Start() {
	var ctx context.Context
	ctx, d.stop = context.WithCancel(context.Background())
	d.loop(ctx, "send", d.effects, d.send)
	d.loop(ctx, "recover", nil, d.recover)
	d.loop(ctx, "look up", nil, d.lookUp)
	d.loop(ctx, "messages", d.messages, d.deliver)
	d.loop(ctx, "sweep", nil, d.sweep)
	d.loops.Go(func() { d.hints(ctx) })
}

// Stop ends the loops, if they were started, then waits until what has begun is settled, at most until ctx ends.
func (d *Dispatcher) Stop(ctx context.Context) error {
	if d.stop != nil { // nil: never started
		d.stop()
	}
	done := make(chan struct{})
	go func() {
		d.loops.Wait()
		d.work.Wait()
		d.connectors.close()
		close(done)
	}()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// loop calls step on each wake-up and each poll, again at once while it reports more work.
func (d *Dispatcher) loop(ctx context.Context, name string, wake <-chan struct{}, step func(context.Context) (more bool, err error)) {
	d.loops.Go(func() {
		timer := time.NewTimer(0)
		defer timer.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-timer.C:
			case <-wake:
			}
			for ctx.Err() == nil {
				more, err := step(ctx)
				if err != nil && ctx.Err() == nil {
					d.o.Log.ErrorContext(ctx, "loop failed", "loop", name, "error", err)
				}
				if !more || err != nil {
					break
				}
			}
			timer.Reset(d.o.Poll)
		}
	})
}

// hints turns what the store tells into wake-ups.
func (d *Dispatcher) hints(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case kind := <-d.o.Wake:
			switch kind {
			case "effects":
				poke(d.effects)
			case "messages":
				poke(d.messages)
			case "policy":
				d.o.Engine.FollowPolicies()
			}
		}
	}
}

func poke(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// recover finds what a dead or paused dispatcher left behind.
func (d *Dispatcher) recover(ctx context.Context) (bool, error) {
	settled, err := d.o.Engine.RecoverEffects(ctx, 100)
	return len(settled) == 100, err
}

// sweep moves what time has moved.
func (d *Dispatcher) sweep(ctx context.Context) (bool, error) {
	n, err := d.o.Engine.Sweep(ctx, 100)
	if err != nil {
		return false, err
	}
	return n >= 100, d.o.Engine.CloseExpired(ctx, 100)
}
