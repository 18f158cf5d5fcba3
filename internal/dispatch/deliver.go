package dispatch

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/holdpoint/holdpoint/internal/engine"
	"github.com/holdpoint/holdpoint/internal/notify"
	"github.com/holdpoint/holdpoint/internal/policy"
	"github.com/holdpoint/holdpoint/internal/store"
)

// The message lane: leases outlast one delivery, and retries go on, ever slower, until a message is delivered or its
// receiver says that it never will be.
const (
	messageBatch = 16
	messageLease = time.Minute
)

// deliver sends due messages. They carry no effect and are not stopped by the effect switch, only by scope messages.
func (d *Dispatcher) deliver(ctx context.Context) (bool, error) {
	leased, err := d.o.Engine.LeaseMessages(ctx, d.owner, messageLease, messageBatch)
	if err != nil {
		return false, err
	}
	for _, m := range leased {
		d.work.Go(func() { d.message(context.WithoutCancel(ctx), m) })
	}
	return len(leased) == messageBatch, nil
}

func (d *Dispatcher) message(ctx context.Context, m store.Message) {
	ctx, cancel := context.WithTimeout(ctx, messageLease-5*time.Second)
	defer cancel()
	state, detail, wait := "delivered", "", time.Duration(0)
	delivery, err := d.o.Engine.PrepareDelivery(ctx, m)
	switch {
	case err == nil && delivery.Drop != "":
		state, detail = "dropped", delivery.Drop
	case err == nil:
		d.o.Reach("dispatch.message_prepared")
		err = d.hand(ctx, delivery)
		d.o.Reach("dispatch.message_accepted")
	}
	var permanent *notify.Permanent
	switch {
	case errors.As(err, &permanent):
		state, detail = "failed", err.Error()
	case err != nil:
		state, detail, wait = "pending", err.Error(), backoff(m.Attempts)
	}
	log := d.o.Log.With("message", m.ID, "type", m.Type, "channel", m.Channel, "run", m.RunID, "attempt", m.Attempts, "state", state)
	if serr := d.o.Engine.SettleMessage(ctx, d.owner, m, state, detail, wait); serr != nil {
		log.ErrorContext(ctx, "message not settled", "error", serr)
		return
	}
	log.InfoContext(ctx, "message", "detail", detail)
}

// hand gives a prepared message to its channel.
func (d *Dispatcher) hand(ctx context.Context, x engine.Delivery) error {
	address, username, password, secret, err := x.Channel.Resolve(d.o.Secrets)
	if err != nil {
		return err
	}
	if x.Channel.Kind == policy.ChannelSMTP {
		return notify.SMTP{URL: address, Username: username, Password: password, From: x.Channel.From, Guard: d.o.Guard}.Send(ctx, x.Notify)
	}
	return notify.Webhook{URL: address, Secret: []byte(secret), Guard: d.o.Guard}.Send(ctx, x.Notify)
}

// backoff gives the wait before the next try: doubling from two seconds to two hours, with full jitter above half.
func backoff(attempt int) time.Duration {
	d := min(2*time.Second<<min(max(0, attempt-1), 12), 2*time.Hour)
	return d/2 + time.Duration(rand.Int64N(int64(d/2)+1))
}
