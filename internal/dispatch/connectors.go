package dispatch

import (
	"sync"

	"github.com/holdpoint/holdpoint/connector"
	"github.com/holdpoint/holdpoint/connector/httpcall"
	"github.com/holdpoint/holdpoint/internal/policy"
)

// pool keeps one connector, with its connections, for each connector version in use.
type pool struct {
	o     Options
	mu    sync.Mutex
	known map[string]*pooled // tenant/name
}

// Link is a connector with the connections that it keeps.
type Link interface {
	connector.Connector
	Close()
}

// pooled is a connector that is closed when it has been replaced and its last user has gone.
type pooled struct {
	Link
	version string
	pool    *pool
	users   int
	retired bool
}

// of gives the connector of a policy's definition; release it after use.
func (p *pool) of(tenant string, c *policy.Connector) *pooled {
	p.mu.Lock()
	defer p.mu.Unlock()
	key := tenant + "/" + c.Name
	x := p.known[key]
	if x == nil || x.version != c.Version {
		if x != nil {
			x.retired = true
			x.closeIfIdle()
		}
		x = &pooled{Link: p.o.Connect(p.config(c)), version: c.Version, pool: p}
		p.known[key] = x
	}
	x.users++
	return x
}

func (x *pooled) release() {
	x.pool.mu.Lock()
	defer x.pool.mu.Unlock()
	x.users--
	x.closeIfIdle()
}

func (x *pooled) closeIfIdle() {
	if x.retired && x.users == 0 {
		x.Close()
	}
}

func (p *pool) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, x := range p.known {
		x.Close()
	}
}

// config puts a policy's connector into the words of httpcall.
func (p *pool) config(c *policy.Connector) httpcall.Config {
	wire := func(h policy.HTTPCall, err error) (httpcall.Wire, error) {
		return httpcall.Wire{Method: h.Method, URL: h.URL, Header: h.Header, Body: h.Body}, err
	}
	cfg := httpcall.Config{
		Name:       c.Name,
		Render:     func(v connector.Vars) (httpcall.Wire, error) { return wire(c.Call(policy.Vars(v), p.o.Secrets)) },
		WireHash:   func(v connector.Vars) (string, error) { return c.WireHash(policy.Vars(v)) },
		Success:    c.Success,
		ProviderID: c.ProviderID,
		Timeout:    c.Timeout,
		Guard:      p.o.Guard,
		Reach:      p.o.Reach,
	}
	if c.Lookup != nil {
		cfg.RenderLookup = func(v connector.Vars) (httpcall.Wire, error) { return wire(c.LookupCall(policy.Vars(v), p.o.Secrets)) }
		cfg.JudgeLookup = func(status int, body []byte) (bool, bool, string, error) {
			f, err := c.JudgeLookup(status, body)
			return f.Found, f.Absent, f.ProviderID, err
		}
	}
	return cfg
}
