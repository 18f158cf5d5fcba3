package policy

import (
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
)

// Connector says how one kind of effect is sent and looked up.
type Connector struct {
	Name        string
	Kind        string // http
	Version     string // hexadecimal hash of what is sent and what counts as success, with secrets by name
	Success     []int  // default 200, 201, 202, 204
	ProviderID  string // JSON Pointer into the response to the provider's own id, or ""
	Idempotency *Idempotency
	Lookup      *Lookup
	Timeout     time.Duration // of one request; default 20s
	Concurrency int           // requests at once; default 8
	Target      string        // scheme://host, for grouping by provider

	method  string
	url     address
	headers []header
	body    *tree
}

// Idempotency is what the configuration claims about the provider's keys. It permits no retry until it is proved.
type Idempotency struct {
	Header    string
	MaxLength int           // at least 16; default 255
	Lifetime  time.Duration // how long the provider remembers a key
}

// Lookup finds out what became of a request.
type Lookup struct {
	MaxLag     time.Duration   // a look-up before this long after the write proves no absence
	Settle     []time.Duration // when to look; default 30s, 2m, 10m
	ProviderID string          // JSON Pointer into the look-up's response, or ""

	url           address
	headers       []header
	found, absent *expression
}

type header struct {
	name  string // canonical
	value text
}

var (
	defaultSuccess = []int{200, 201, 202, 204}
	defaultSettle  = []time.Duration{30 * time.Second, 2 * time.Minute, 10 * time.Minute}
	writeMethods   = []string{"POST", "PUT", "PATCH", "DELETE"}
	laterKinds     = []string{"smtp", "n8n", "hermes"}
)

// reservedHeaders are the transport's own.
var reservedHeaders = []string{"Host", "Content-Length", "Transfer-Encoding", "Connection", "Keep-Alive", "Upgrade", "Te", "Trailer", "Expect"}

func (r *reader) connectors(n *yaml.Node) map[string]*Connector {
	all := map[string]*Connector{}
	for _, e := range r.object(n, `"connectors"`).entries {
		if r.name(e.key, "a connector") {
			all[e.key.Value] = r.connector(e.key.Value, e.value)
		}
	}
	return all
}

func (r *reader) connector(name string, n *yaml.Node) *Connector {
	o := r.object(n, "connector "+strconv.Quote(name))
	c := &Connector{Name: name, Kind: o.string("kind", "")}
	kind := o.need("kind", "write `kind: http`")
	switch {
	case kind == nil || c.Kind == "":
		return c
	case slices.Contains(laterKinds, c.Kind):
		o.fail(kind, later, "connector kind %q is not in this version: use kind http", c.Kind)
		return c
	case c.Kind != "http":
		o.fail(kind, "invalid_value", "use kind http; %q is not a kind of connector", c.Kind)
		return c
	}
	o.refuse("sandbox", "an idempotency claim stays unproved and permits no retry")
	env, err := connectorEnv()
	if err != nil {
		o.fail(n, "expression", "the expression language cannot start")
		return c
	}
	at := func(what string) place { return place{env: env, secrets: true, what: what + " of " + o.what} }

	if c.method = o.string("method", "POST"); !slices.Contains(writeMethods, c.method) {
		o.fail(o.has("method"), "invalid_value", "%s writes with POST, PUT, PATCH or DELETE", o.what)
	}
	if u := o.need("url", "write the address of the provider's call"); u != nil {
		c.url = o.address(u, at(`"url"`))
		c.Target = c.url.origin
	}
	c.headers = o.headers("headers", at)
	if b := o.has("body"); b != nil {
		t := r.tree(b, at(`"body"`))
		c.body = &t
	} else if c.method != "DELETE" {
		if x, err := compile(env, "effect.payload"); err == nil {
			c.body = &tree{kind: treeText, text: text{{expr: x}}}
		}
	}
	c.Idempotency = o.idempotency(c.headers)
	c.Success = o.success()
	c.ProviderID = o.pointer("provider_id")
	c.Lookup = o.lookup(c, at)
	if c.Timeout = o.duration("timeout", 20*time.Second); c.Timeout > 10*time.Minute {
		o.fail(o.has("timeout"), "invalid_value", "wait at most 10m for a provider")
	}
	c.Concurrency = o.integer("concurrency", 8, 1, 256)
	o.close()
	if !r.failed {
		c.Version = c.version()
	}
	return c
}

// version hashes what is sent and what counts as success. Look-up, time-out and concurrency change no request and may
// be corrected while effects wait.
func (c *Connector) version() string {
	h := newFrames("holdpoint connector 1")
	h.add([]byte(c.Kind))
	h.add([]byte(c.method))
	h.add([]byte(c.url.text.String()))
	headers := slices.SortedFunc(slices.Values(c.headers), func(a, b header) int { return strings.Compare(a.name, b.name) })
	for _, hd := range headers {
		h.add([]byte(hd.name))
		h.add([]byte(hd.value.String()))
	}
	h.absent()
	if c.body != nil {
		h.add(c.body.source(nil))
	}
	h.absent()
	if i := c.Idempotency; i != nil {
		h.add([]byte(i.Header))
		h.add([]byte(strconv.Itoa(i.MaxLength)))
		h.add([]byte(i.Lifetime.String()))
	}
	h.absent()
	for _, status := range slices.Sorted(slices.Values(c.Success)) {
		h.add([]byte(strconv.Itoa(status)))
	}
	return h.hex()
}

func (o *object) address(n *yaml.Node, at place) address {
	if o.reader.string(n, at.what) == "" {
		return address{}
	}
	t := o.text(n, at)
	if t == nil {
		return address{}
	}
	a, err := newAddress(t)
	if err != nil {
		o.fail(n, "invalid_url", "%s: %v", at.what, err)
		return address{}
	}
	if u, err := url.Parse(a.origin); err == nil && u.Scheme == "http" && !isLoopback(u.Hostname()) {
		o.warn(n, "insecure", "%s: use https; over http anybody on the way reads and changes what is sent", at.what)
	}
	return a
}

func (o *object) headers(key string, at func(string) place) (all []header) {
	for _, e := range o.object(o.has(key), strconv.Quote(key)+" of "+o.what).entries {
		name, ok := o.headerName(e.key)
		if !ok {
			continue
		}
		if slices.ContainsFunc(all, func(h header) bool { return h.name == name }) {
			o.fail(e.key, "duplicate_key", "write the header %s once", name)
			continue
		}
		p := at("header " + name)
		if o.reader.string(e.value, p.what) == "" {
			continue
		}
		h := header{name, o.text(e.value, p)}
		if (name == "Authorization" || name == "Cookie") && len(h.value.secrets()) == 0 {
			o.warn(e.value, "literal_secret", "%s: name the secret as ${env:NAME} or ${file:PATH}; the document is stored and shown", p.what)
		}
		all = append(all, h)
	}
	return all
}

func (o *object) idempotency(headers []header) *Idempotency {
	n := o.has("idempotency")
	if n == nil {
		return nil
	}
	i := o.object(n, `"idempotency" of `+o.what)
	claim := &Idempotency{MaxLength: i.integer("max_length", 255, 16, 1024)}
	if h := i.need("header", "name the header that carries the provider's key"); h != nil {
		claim.Header, _ = i.headerName(h)
		if slices.ContainsFunc(headers, func(h header) bool { return h.name == claim.Header }) {
			i.fail(h, "duplicate_key", "leave %s out of the headers: it carries the derived key", claim.Header)
		}
	}
	if l := i.need("lifetime", "say how long the provider remembers a key, for example 24h"); l != nil {
		claim.Lifetime = i.reader.duration(l, `"lifetime"`)
	}
	i.close()
	return claim
}

func (o *object) success() []int {
	n := o.has("success")
	if n == nil {
		return slices.Clone(defaultSuccess)
	}
	var all []int
	if n.Kind == yaml.SequenceNode {
		for _, c := range n.Content {
			status, err := strconv.Atoi(c.Value)
			if err != nil || status < 200 || status > 299 || slices.Contains(all, status) {
				o.fail(c, "invalid_value", "list each status from 200 to 299 that means success once")
				continue
			}
			all = append(all, status)
		}
	}
	if len(all) == 0 {
		o.fail(n, "invalid_value", `"success" is a list of at least one status, for example [200, 201]`)
	}
	return all
}

func (o *object) lookup(c *Connector, at func(string) place) *Lookup {
	n := o.has("lookup")
	if n == nil {
		return nil
	}
	l := o.object(n, `"lookup" of `+o.what)
	l.refuse("imap", "look up over HTTP with a url")
	l.refuse("folder", "look up over HTTP with a url")
	find := &Lookup{headers: c.headers, Settle: slices.Clone(defaultSettle)}
	if u := l.need("url", "write the address that finds an object by ${effect.reference}"); u != nil {
		find.url = l.address(u, at(`"url" of the look-up`))
	}
	if l.has("headers") != nil {
		find.headers = l.headers("headers", at)
	}
	env, err := lookupEnv()
	if err != nil {
		l.fail(n, "expression", "the expression language cannot start")
		return find
	}
	l.need("found", "write an expression over response and status that is true when the object is there")
	l.need("absent", "write an expression over response and status that is true when the object is not there")
	find.found = l.condition("found", env)
	find.absent = l.condition("absent", env)
	find.ProviderID = l.pointer("provider_id")
	if m := l.need("max_lag", "say how long a write may stay invisible to the look-up, for example 2m"); m != nil {
		find.MaxLag = l.reader.duration(m, `"max_lag"`)
	}
	if s := l.has("settle"); s != nil {
		find.Settle = nil
		if s.Kind != yaml.SequenceNode || len(s.Content) == 0 {
			l.fail(s, "invalid_value", `"settle" is a list of durations, for example [30s, 2m, 10m]`)
		} else {
			for _, d := range s.Content {
				find.Settle = append(find.Settle, l.reader.duration(d, `"settle"`))
			}
		}
	}
	l.close()
	return find
}
