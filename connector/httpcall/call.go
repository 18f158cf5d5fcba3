package httpcall

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"syscall"
	"time"

	"github.com/holdpoint/holdpoint"
	"github.com/holdpoint/holdpoint/internal/egress"
)

// call is one rendered request.
type call struct {
	c    *Connector
	req  *http.Request
	body []byte
	hash string
}

// WireHash implements connector.Call.
func (k *call) WireHash() string { return k.hash }

// Send implements connector.Call.
func (k *call) Send(ctx context.Context, sendBefore time.Time) holdpoint.Outcome {
	start := time.Now()
	var reach func()
	if k.c.cfg.Reach != nil {
		reach = func() { k.c.cfg.Reach(PointBeforeFirstByte) }
	}
	x := newExchange(start, sendBefore, reach)
	o := k.send(ctx, x)
	o.Took = time.Since(start)
	return o
}

func (k *call) send(ctx context.Context, x *exchange) holdpoint.Outcome {
	if x.late(time.Now()) {
		return rejected(holdpoint.PhaseLocal, holdpoint.ClassLocalDeadline, "write deadline passed")
	}
	a, err := k.c.roundTrip(ctx, k.req, k.body, x)
	x.mu.Lock()
	sent, flushed, heard, refused := x.sent, x.flushed, x.heard, x.refused
	x.mu.Unlock()
	switch {
	case err == nil && heard:
		return k.c.classify(a)
	case sent == 0:
		return unsent(ctx, err, refused)
	case err == nil: // left over from the exchange before
		return unclear(holdpoint.PhaseWritten, errStray.Error())
	case !flushed:
		return unclear(holdpoint.PhasePartial, "request partly written, "+errorKind(err))
	}
	return unclear(holdpoint.PhaseWritten, "no answer, "+errorKind(err))
}

// unsent is the outcome of a request of which no byte was written.
func unsent(ctx context.Context, err, refused error) holdpoint.Outcome {
	var guard *egress.RefusedError
	var cert *tls.CertificateVerificationError
	switch {
	case errors.Is(refused, errDeadline):
		return rejected(holdpoint.PhaseLocal, holdpoint.ClassLocalDeadline, "write deadline passed")
	case errors.As(err, &guard):
		return rejected(holdpoint.PhaseLocal, holdpoint.ClassConnect, "egress refused, "+guard.Reason+" address")
	case ctx.Err() != nil:
		return rejected(holdpoint.PhaseLocal, holdpoint.ClassLocalDeadline, "ended before the first byte")
	case errors.As(err, &cert):
		return rejected(holdpoint.PhaseConnect, holdpoint.ClassTLS, "certificate not accepted")
	}
	return rejected(holdpoint.PhaseConnect, holdpoint.ClassConnect, errorKind(err))
}

func rejected(p holdpoint.Phase, c holdpoint.FailureClass, detail string) holdpoint.Outcome {
	return holdpoint.Outcome{Result: holdpoint.Rejected, Phase: p, Class: c, Detail: detail}
}

func unclear(p holdpoint.Phase, detail string) holdpoint.Outcome {
	return holdpoint.Outcome{Result: holdpoint.Unclear, Phase: p, Class: holdpoint.ClassAmbiguous, Detail: detail}
}

// errorKind names err in a few words. The text of a transport error can carry a URL, and a URL can carry content.
func errorKind(err error) string {
	var dns *net.DNSError
	var cert *tls.CertificateVerificationError
	var guard *egress.RefusedError
	var timeout interface{ Timeout() bool }
	switch {
	case errors.Is(err, errDeadline):
		return "write deadline passed"
	case errors.As(err, &guard):
		return "egress refused"
	case errors.As(err, &dns):
		return "name not resolved"
	case errors.As(err, &cert):
		return "certificate not accepted"
	case errors.Is(err, syscall.ECONNREFUSED):
		return "connection refused"
	case errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE):
		return "connection reset"
	case errors.Is(err, context.Canceled):
		return "cancelled"
	case errors.As(err, &timeout) && timeout.Timeout():
		return "timeout"
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, errSecond):
		return "connection closed"
	}
	return "connection failed"
}
