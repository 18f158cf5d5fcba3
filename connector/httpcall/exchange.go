package httpcall

import (
	"cmp"
	"context"
	"errors"
	"net"
	"net/http/httptrace"
	"sync"
	"sync/atomic"
	"time"
)

// Why an exchange refuses to write.
var (
	errDeadline = errors.New("the write deadline has passed")
	errSecond   = errors.New("one attempt is one request")
	errUnbound  = errors.New("no exchange owns this connection")
	errStray    = errors.New("an answer came before the request")
)

// exchange watches one request on the wire: what was written, what came back, and whether more may be written. A write
// is single: it has a deadline and gets one connection. A look-up may be repeated by the transport and has no deadline.
type exchange struct {
	single bool
	mono   time.Time // the write deadline, by the monotonic clock: a stepped wall clock does not extend it
	wall   time.Time // the same by the wall clock: a suspended machine does not extend it
	reach  func()
	cancel context.CancelCauseFunc

	mu      sync.Mutex
	asked   int // connections asked for
	conns   []*conn
	begun   bool  // reach was called
	started bool  // a socket write was permitted
	sent    int64 // bytes of the request that the socket took
	flushed bool  // the transport has written the whole request
	heard   bool  // bytes came back after the first write
	refused error
}

// newExchange makes the exchange of a write that may be begun until sendBefore.
func newExchange(now, sendBefore time.Time, reach func()) *exchange {
	wall := sendBefore.Round(0)
	return &exchange{single: true, mono: now.Add(wall.Sub(now.Round(0))), wall: wall, reach: reach}
}

func (x *exchange) late(now time.Time) bool {
	return !now.Before(x.mono) || !now.Round(0).Before(x.wall)
}

// trace connects the exchange with the transport's steps.
func (x *exchange) trace(ctx context.Context) context.Context {
	return httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		GetConn: func(string) { x.want() },
		GotConn: func(info httptrace.GotConnInfo) {
			if c, ok := info.Conn.(*conn); ok {
				c.bind(x)
			}
		},
		WroteRequest: func(info httptrace.WroteRequestInfo) {
			if info.Err == nil {
				x.mu.Lock()
				x.flushed = true
				x.mu.Unlock()
			}
		},
	})
}

// want ends the exchange when the transport asks for a second connection: it does so only to send the request again,
// which it thinks is safe for a request without body that carries an Idempotency-Key.
func (x *exchange) want() {
	x.mu.Lock()
	x.asked++
	second := x.single && x.asked > 1
	x.mu.Unlock()
	if second {
		x.cancel(errSecond)
	}
}

// expire refuses everything if no write was permitted yet.
func (x *exchange) expire() {
	x.mu.Lock()
	idle := !x.started
	if idle && x.refused == nil {
		x.refused = errDeadline
	}
	x.mu.Unlock()
	if idle {
		x.cancel(errDeadline)
	}
}

// begin announces the first byte, once.
func (x *exchange) begin() {
	x.mu.Lock()
	first := !x.begun
	x.begun = true
	x.mu.Unlock()
	if first && x.reach != nil {
		x.reach()
	}
}

// permit is asked right before every socket write.
func (x *exchange) permit() error {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.single && x.refused == nil && x.late(time.Now()) {
		x.refused = errDeadline
	}
	if x.refused != nil {
		return x.refused
	}
	x.started = true
	return nil
}

func (x *exchange) wrote(n int) {
	x.mu.Lock()
	x.sent += int64(n)
	x.mu.Unlock()
}

// hear takes note of bytes that came back. What comes before the first write answers something else.
func (x *exchange) hear() error {
	x.mu.Lock()
	defer x.mu.Unlock()
	if !x.started {
		return errStray
	}
	x.heard = true
	return nil
}

// end gives the connections back: what they do from now on does not count for this exchange.
func (x *exchange) end() {
	x.mu.Lock()
	conns := x.conns
	x.mu.Unlock()
	for _, c := range conns {
		c.release(x)
	}
}

// wire is the socket side of a connection. While owner is set, every write needs its permission and is counted; writes
// without owner are handshakes and alerts.
type wire struct {
	net.Conn
	owner atomic.Pointer[exchange]
}

// Write implements net.Conn.
func (w *wire) Write(p []byte) (int, error) {
	x := w.owner.Load()
	if x == nil {
		return w.Conn.Write(p)
	}
	if err := x.permit(); err != nil {
		return 0, err
	}
	n, err := w.Conn.Write(p)
	x.wrote(n)
	return n, err
}

// conn is the plain-text side: the socket itself, or TLS above it. It belongs to one exchange at a time.
type conn struct {
	net.Conn
	wire *wire

	mu      sync.Mutex
	x       *exchange
	reading bool          // the transport waits for bytes: it holds none that it has not looked at
	asked   chan struct{} // closed when it does; nil while nobody waits for that
}

// quietWait bounds how long a reused connection may take to show that nothing of the exchange before is left over.
const quietWait = time.Second

// quiet waits until the transport reads from the socket again. Then its buffer is empty, so that no left-over answer can
// be taken for the answer to the next request; what it finds left over while no request is under way makes it close the
// connection.
func (c *conn) quiet() bool {
	c.mu.Lock()
	if c.reading {
		c.mu.Unlock()
		return true
	}
	if c.asked == nil {
		c.asked = make(chan struct{})
	}
	asked := c.asked
	c.mu.Unlock()
	timer := time.NewTimer(quietWait)
	defer timer.Stop()
	select {
	case <-asked:
		return true
	case <-timer.C:
		return false
	}
}

func (c *conn) setReading(on bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.reading = on
	if on && c.asked != nil {
		close(c.asked)
		c.asked = nil
	}
}

// Close implements net.Conn. Whoever waits for the connection learns from its first write that it is closed.
func (c *conn) Close() error {
	err := c.Conn.Close()
	c.setReading(true)
	return err
}

func (c *conn) owner() *exchange {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.x
}

// bind gives the connection to x and sets its write deadline. A second connection for a single exchange is refused.
func (c *conn) bind(x *exchange) {
	x.mu.Lock()
	x.conns = append(x.conns, c)
	if x.single && len(x.conns) > 1 && x.refused == nil {
		x.refused = errSecond
	}
	x.mu.Unlock()
	if !c.quiet() {
		x.mu.Lock()
		x.refused = cmp.Or(x.refused, errStray)
		x.mu.Unlock()
	}

	c.mu.Lock()
	defer c.mu.Unlock()
	c.x = x
	// An error means that the connection is closed, which the next write shows.
	_ = c.wire.SetWriteDeadline(x.mono)
}

func (c *conn) release(x *exchange) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.x == x {
		c.x = nil
		_ = c.wire.SetWriteDeadline(time.Time{})
	}
}

// Write implements net.Conn.
func (c *conn) Write(p []byte) (int, error) {
	x := c.owner()
	if x == nil {
		return 0, errUnbound
	}
	x.begin()
	c.wire.owner.Store(x)
	defer c.wire.owner.Store(nil)
	return c.Conn.Write(p)
}

// Read implements net.Conn. Bytes that no request has asked for break the connection; the transport would log them.
func (c *conn) Read(p []byte) (int, error) {
	c.setReading(true)
	n, err := c.Conn.Read(p)
	c.setReading(false)
	if n > 0 {
		x := c.owner()
		if x == nil {
			return 0, errStray
		}
		if stray := x.hear(); stray != nil {
			return 0, stray
		}
	}
	return n, err
}
