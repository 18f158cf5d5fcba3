// Package lanes sends what concurrent callers queue in batches. There is no waiting for more: what comes alone goes alone
// and at once, and while a batch is on its way the next one gathers. A batch that takes long, for a lock or a slow disk,
// makes the others wait no longer than Patience: they go beside it.
package lanes

import (
	"context"
	"sync"
	"time"
)

// Patience is how long what is queued waits for the batch before it. It is longer than a batch takes on a busy machine,
// where small batches side by side cost more than they hasten.
const Patience = 20 * time.Millisecond

// Lanes sends the batches of one queue, which its owner keeps and touches under Lock only.
type Lanes struct {
	Next   func() func(context.Context) // takes a batch from the queue and gives what sends it, nil if nothing waits; under Lock
	Beside int                          // batches that may be on their way beside the first
	Bound  time.Duration                // of one batch; its context ends then

	mu     sync.Mutex
	steady bool // one lane works until nothing waits
	beside int  // batches that went beside it
	timed  bool // overdue will be called
}

// Lock runs fn while nobody else touches the queue.
func (l *Lanes) Lock(fn func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	fn()
}

// Add queues by fn, under Lock, and has what is queued sent.
func (l *Lanes) Add(fn func()) {
	l.Lock(func() {
		fn()
		if l.steady {
			l.watch()
			return
		}
		l.steady = true
		go l.work()
	})
}

// watch has what waits looked after when patience is over.
func (l *Lanes) watch() {
	if !l.timed && l.beside < l.Beside {
		l.timed = true
		time.AfterFunc(Patience, l.overdue)
	}
}

// work sends batches until nothing waits.
func (l *Lanes) work() {
	for {
		var send func(context.Context)
		l.Lock(func() {
			send = l.Next()
			l.steady = send != nil
		})
		if send == nil {
			return
		}
		l.bounded(send)
	}
}

// overdue sends one batch of what still waits beside those on their way.
func (l *Lanes) overdue() {
	var send func(context.Context)
	l.Lock(func() {
		l.timed = false
		if send = l.Next(); send != nil {
			l.beside++
			l.watch()
		}
	})
	if send == nil {
		return
	}
	l.bounded(send)
	l.Lock(func() {
		l.beside--
		l.watch()
	})
}

func (l *Lanes) bounded(send func(context.Context)) {
	ctx, cancel := context.WithTimeout(context.Background(), l.Bound)
	defer cancel()
	send(ctx)
}
