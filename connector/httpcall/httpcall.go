// Package httpcall is the connector to HTTP APIs.
//
// One attempt is one request. The package owns its transport and its sockets: it speaks HTTP/1.1, follows no redirect,
// takes no proxy from the environment, verifies TLS, and keeps the transport from sending a request a second time on
// another connection. It counts the bytes that the sockets take, so that an outcome can say in which phase the wire
// broke, and it checks the write deadline right before each socket write, so that a process that was stopped in between
// does not write late. Between that check and the system call nothing can be checked any more; what remains of the
// window is microseconds.
package httpcall

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"golang.org/x/net/http/httpguts"

	"github.com/holdpoint/holdpoint"
	"github.com/holdpoint/holdpoint/connector"
	"github.com/holdpoint/holdpoint/internal/egress"
)

// Defaults and limits.
const (
	DefaultTimeout = 20 * time.Second // of one exchange, from the dial to the last byte of the answer
	DefaultMaxBody = 1 << 20          // bytes of an answer that are read
	maxHeader      = 64 << 10         // bytes of an answer's header
	maxIdle        = 16               // idle connections per host
	idleTimeout    = 30 * time.Second
)

// PointBeforeFirstByte is the point that Config.Reach is told about before the first byte of a write leaves. The write
// deadline is checked after it.
const PointBeforeFirstByte = "httpcall.before_first_byte"

// Wire is one rendered request.
type Wire struct {
	Method string
	URL    string
	Header map[string]string
	Body   []byte
}

// Config says how a connector renders, sends and judges. Render and WireHash are required; they must be pure.
type Config struct {
	Name     string
	Render   func(connector.Vars) (Wire, error)
	WireHash func(connector.Vars) (string, error) // of what the provider would receive, without secrets

	RenderLookup func(connector.Vars) (Wire, error) // a GET; nil means that there is no look-up
	JudgeLookup  func(status int, body []byte) (found, absent bool, providerID string, err error)

	Success    []int  // the statuses that mean accepted; empty means every 2xx but 207
	ProviderID string // JSON pointer to the provider's id in an accepted answer; "" means that none is expected

	Timeout time.Duration // of one exchange; 0 means DefaultTimeout
	Guard   *egress.Guard // nil permits public addresses only
	MaxBody int64         // bytes; 0 means DefaultMaxBody
	Reach   func(point string)
}

// Connector is a connector.Connector over HTTP. Close it when it is replaced.
type Connector struct {
	cfg       Config
	transport *http.Transport
	roots     *x509.CertPool // nil means those of the system
	now       func() time.Time
}

var _ connector.Connector = (*Connector)(nil)

// New makes a connector with a transport of its own. It opens no connection.
func New(cfg Config) *Connector {
	if cfg.Timeout <= 0 {
		cfg.Timeout = DefaultTimeout
	}
	if cfg.MaxBody <= 0 {
		cfg.MaxBody = DefaultMaxBody
	}
	c := &Connector{cfg: cfg, now: time.Now}
	var protocols http.Protocols
	protocols.SetHTTP1(true)
	c.transport = &http.Transport{
		Protocols:              &protocols,
		Proxy:                  nil,
		DialContext:            c.dial,
		DialTLSContext:         c.dialTLS,
		DisableCompression:     true,
		MaxIdleConnsPerHost:    maxIdle,
		IdleConnTimeout:        idleTimeout,
		MaxResponseHeaderBytes: maxHeader,
	}
	return c
}

// Close closes the idle connections. Exchanges that are under way end as they would have.
func (c *Connector) Close() { c.transport.CloseIdleConnections() }

func (c *Connector) dialWire(ctx context.Context, network, addr string) (*wire, error) {
	ctx, cancel := context.WithTimeout(ctx, c.cfg.Timeout)
	defer cancel()
	s, err := c.cfg.Guard.DialContext(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	return &wire{Conn: s}, nil
}

func (c *Connector) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	w, err := c.dialWire(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	return &conn{Conn: w, wire: w}, nil
}

func (c *Connector) dialTLS(ctx context.Context, network, addr string) (net.Conn, error) {
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, err
	}
	w, err := c.dialWire(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, c.cfg.Timeout)
	defer cancel()
	t := tls.Client(w, &tls.Config{
		ServerName: host,
		RootCAs:    c.roots,
		MinVersion: tls.VersionTLS12,
		NextProtos: []string{"http/1.1"},
	})
	if err := t.HandshakeContext(ctx); err != nil {
		_ = w.Close()
		return nil, err
	}
	return &conn{Conn: t, wire: w}, nil
}

// Prepare renders the request for v and checks that it can be put on the wire as it stands.
func (c *Connector) Prepare(v connector.Vars) (connector.Call, error) {
	w, err := c.cfg.Render(v)
	if err != nil {
		return nil, c.refusal(err, "the request could not be rendered from the approved payload; correct the connector's policy")
	}
	hash, err := c.cfg.WireHash(v)
	if err != nil {
		return nil, c.refusal(err, "the wire hash could not be computed; correct the connector's policy")
	}
	switch w.Method {
	case http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete:
	default:
		return nil, c.refuse("the method of a write must be POST, PUT, PATCH or DELETE")
	}
	req, refusal := c.request(w)
	if refusal != nil {
		return nil, refusal
	}
	return &call{c: c, req: req, body: w.Body, hash: hash}, nil
}

func (c *Connector) refuse(sentence string) *holdpoint.Error {
	return holdpoint.Errorf(holdpoint.CodeRender, "connector %q: %s", c.cfg.Name, sentence)
}

// refusal passes a *holdpoint.Error on. Any other error may quote content, so only the sentence goes out.
func (c *Connector) refusal(err error, sentence string) *holdpoint.Error {
	var e *holdpoint.Error
	if errors.As(err, &e) {
		return e
	}
	return c.refuse(sentence)
}

// framing are the headers that belong to the transport. A policy that sets one could split or hide a request.
var framing = map[string]bool{
	"Connection": true, "Content-Length": true, "Expect": true, "Host": true, "Keep-Alive": true,
	"Proxy-Authorization": true, "Proxy-Connection": true, "Te": true, "Trailer": true, "Transfer-Encoding": true,
	"Upgrade": true,
}

// request turns w into a request without body.
func (c *Connector) request(w Wire) (*http.Request, *holdpoint.Error) {
	u, err := url.Parse(w.URL)
	switch {
	case err != nil:
		return nil, c.refuse("the rendered URL cannot be read")
	case u.Scheme != "http" && u.Scheme != "https":
		return nil, c.refuse("the URL must begin with https:// or http://")
	case u.Hostname() == "":
		return nil, c.refuse("the URL has no host")
	case u.User != nil:
		return nil, c.refuse("the URL must not carry a user or password; use a header")
	}
	u.Fragment = ""
	h := http.Header{"User-Agent": {"Holdpoint"}}
	seen := make(map[string]bool, len(w.Header))
	for name, value := range w.Header {
		key := http.CanonicalHeaderKey(name)
		switch {
		case !httpguts.ValidHeaderFieldName(name):
			return nil, c.refuse("a header has a name that HTTP does not allow")
		case !httpguts.ValidHeaderFieldValue(value):
			return nil, c.refuse("header " + strconv.Quote(key) + " has a value with control characters")
		case framing[key]:
			return nil, c.refuse("header " + strconv.Quote(key) + " belongs to the transport and cannot be set")
		case seen[key]:
			return nil, c.refuse("header " + strconv.Quote(key) + " is set twice")
		}
		seen[key] = true
		h[key] = []string{value}
	}
	if len(w.Body) > 0 && !seen["Content-Type"] {
		h.Set("Content-Type", "application/json")
	}
	return &http.Request{
		Method: w.Method, URL: u, Host: u.Host, Header: h,
		Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
	}, nil
}

// roundTrip runs one exchange. It gives an answer as soon as a status line was seen, however the body ended, and an
// error otherwise. The connection is no longer used for x when it returns.
func (c *Connector) roundTrip(ctx context.Context, template *http.Request, body []byte, x *exchange) (answer, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	ctx, stop := context.WithTimeout(ctx, c.cfg.Timeout)
	defer stop()
	x.cancel = cancel
	defer x.end()
	if x.single {
		timer := time.AfterFunc(time.Until(x.mono), x.expire)
		defer timer.Stop()
	}
	req := template.Clone(x.trace(ctx))
	if len(body) > 0 {
		// A body that the transport cannot rewind is one that it cannot send twice: no GetBody.
		req.Body = io.NopCloser(bytes.NewReader(body))
		req.ContentLength = int64(len(body))
	}
	resp, err := c.transport.RoundTrip(req)
	if err != nil {
		return answer{}, err
	}
	a := answer{status: resp.StatusCode, header: resp.Header}
	// A body longer than the limit counts as lost: half an answer is none.
	got, err := io.ReadAll(io.LimitReader(resp.Body, c.cfg.MaxBody+1))
	_ = resp.Body.Close()
	if a.cut = err != nil || int64(len(got)) > c.cfg.MaxBody; !a.cut {
		a.body = got
	}
	return a, nil
}

// Find asks with one GET. Only a complete 2xx answer is judged; everything else proves nothing.
func (c *Connector) Find(ctx context.Context, v connector.Vars) connector.Finding {
	if c.cfg.RenderLookup == nil || c.cfg.JudgeLookup == nil {
		return connector.Finding{State: connector.Unsupported, Detail: "this connector has no look-up"}
	}
	unclear := func(detail string) connector.Finding {
		return connector.Finding{State: connector.Unclear, Detail: detail}
	}
	w, err := c.cfg.RenderLookup(v)
	if err != nil {
		return unclear("the look-up could not be rendered")
	}
	if w.Method == "" {
		w.Method = http.MethodGet
	}
	if w.Method != http.MethodGet || len(w.Body) > 0 {
		return unclear("a look-up must be a GET without body")
	}
	req, refusal := c.request(w)
	if refusal != nil {
		return unclear("the look-up could not be rendered")
	}
	a, err := c.roundTrip(ctx, req, nil, &exchange{})
	if err != nil {
		return unclear("no answer, " + errorKind(err))
	}
	status := "status " + strconv.Itoa(a.status)
	if a.status < 200 || a.status > 299 || a.cut {
		return unclear(status + ", nothing to judge")
	}
	found, absent, id, err := c.cfg.JudgeLookup(a.status, a.body)
	switch {
	case err != nil:
		return unclear(status + ", the answer could not be judged")
	case found == absent:
		return unclear(status + ", neither found nor absent")
	case found:
		return connector.Finding{State: connector.Found, ProviderID: fitID(id), Detail: status, Matches: 1}
	}
	return connector.Finding{State: connector.Absent, Detail: status}
}
