package policy

import (
	"errors"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"cel.dev/cel-go/common/types"
	"github.com/holdpoint/holdpoint"
	"go.yaml.in/yaml/v3"
)

// Vars is what a connector's templates may read of an effect, as `effect`: key, reference, target, payload, slot, type
// and run_id. Nothing of the event or the draft is visible that the approved payload does not carry.
type Vars struct {
	Key       string // the provider's idempotency key
	Reference string // our marker on the provider's object
	Target    string
	Payload   []byte // JSON
	Slot      string
	Type      string
	RunID     string
}

// HTTPCall is one request, complete. Header has canonical names and includes the idempotency header.
type HTTPCall struct {
	Method string
	URL    string
	Header map[string]string
	Body   []byte
}

var headerToken = regexp.MustCompile("^[A-Za-z0-9!#$%&'*+.^_`|~-]{1,100}$")

// headerName gives the canonical name, or reports one that policy may not set.
func (r *reader) headerName(n *yaml.Node) (string, bool) {
	name := http.CanonicalHeaderKey(n.Value)
	switch {
	case n.Kind != yaml.ScalarNode || !headerToken.MatchString(n.Value):
		r.fail(n, "invalid_header", "use letters, digits and dashes in a header name")
	case slices.Contains(reservedHeaders, name) || strings.HasPrefix(name, "Proxy-"):
		r.fail(n, "invalid_header", "leave the header %s out: the transport sets it", name)
	default:
		return name, true
	}
	return "", false
}

func (v Vars) bind() (map[string]any, error) {
	payload, err := decode(v.Payload)
	if err != nil {
		return nil, err
	}
	fields := map[string]any{
		"key": v.Key, "reference": v.Reference, "target": v.Target, "payload": payload,
		"slot": v.Slot, "type": v.Type, "run_id": v.RunID,
	}
	return map[string]any{"effect": adapter{exact: true}.NativeToValue(fields)}, nil
}

// renderError gives a failure of a template the code render. A missing secret keeps its own error.
func renderError(what string, err error) error {
	if known := (*holdpoint.Error)(nil); errors.As(err, &known) {
		return known
	}
	return holdpoint.Errorf(holdpoint.CodeRender, "%s: %v", what, err)
}

// Call renders the write. The error has code render when the effect does not fit the connector, and unavailable, with
// the secret's name, when a secret is missing.
func (c *Connector) Call(v Vars, s Secrets) (HTTPCall, error) {
	what := "connector " + strconv.Quote(c.Name)
	vars, err := v.bind()
	if err != nil {
		return HTTPCall{}, err
	}
	call := HTTPCall{Method: c.method}
	if call.URL, err = c.url.render(vars, s); err != nil {
		return HTTPCall{}, renderError(what+", url", err)
	}
	if call.Header, err = renderHeaders(c.headers, vars, s); err != nil {
		return HTTPCall{}, renderError(what+", headers", err)
	}
	if c.Idempotency != nil {
		if v.Key == "" || len(v.Key) > c.Idempotency.MaxLength || !visible(v.Key) {
			return HTTPCall{}, holdpoint.Errorf(holdpoint.CodeRender, "%s: derive a key of 1 to %d visible ASCII characters", what, c.Idempotency.MaxLength)
		}
		call.Header[c.Idempotency.Header] = v.Key
	}
	if c.body != nil {
		if call.Body, err = c.body.render(nil, vars, s); err != nil {
			return HTTPCall{}, renderError(what+", body", err)
		}
		if _, ok := call.Header["Content-Type"]; !ok {
			call.Header["Content-Type"] = "application/json"
		}
	}
	return call, nil
}

func visible(s string) bool {
	return !strings.ContainsFunc(s, func(r rune) bool { return r <= ' ' || r > '~' })
}

func renderHeaders(headers []header, vars map[string]any, s Secrets) (map[string]string, error) {
	all := make(map[string]string, len(headers)+2)
	for _, h := range headers {
		var b strings.Builder
		err := h.value.each(vars, s, func(v string, foreign bool) error {
			if foreign && hasControl(v) {
				return errors.New("the value of " + h.name + " holds a line break or another control character")
			}
			b.WriteString(v)
			return nil
		})
		if err != nil {
			return nil, err
		}
		all[h.name] = b.String()
	}
	return all, nil
}

// WireHash identifies the rendered request, with secrets by name: the hexadecimal SHA-256 over method, URL, headers
// and body. A retry may go out only with the hash of the attempt before (SPEC I3).
func (c *Connector) WireHash(v Vars) (string, error) {
	call, err := c.Call(v, named{})
	if err != nil {
		return "", err
	}
	h := newFrames("holdpoint wire 1")
	h.add([]byte(call.Method))
	h.add([]byte(call.URL))
	names := make([]string, 0, len(call.Header))
	for name := range call.Header {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		h.add([]byte(name))
		h.add([]byte(call.Header[name]))
	}
	h.absent()
	h.add(call.Body)
	return h.hex(), nil
}

// LookupCall renders the look-up, a GET without the idempotency header. A connector without a look-up gives an error.
func (c *Connector) LookupCall(v Vars, s Secrets) (HTTPCall, error) {
	what := "connector " + strconv.Quote(c.Name)
	if c.Lookup == nil {
		return HTTPCall{}, holdpoint.Errorf(holdpoint.CodeNotAllowedNow, "%s has no look-up: record what is true by hand", what)
	}
	vars, err := v.bind()
	if err != nil {
		return HTTPCall{}, err
	}
	call := HTTPCall{Method: http.MethodGet}
	if call.URL, err = c.Lookup.url.render(vars, s); err != nil {
		return HTTPCall{}, renderError(what+", look-up url", err)
	}
	if call.Header, err = renderHeaders(c.Lookup.headers, vars, s); err != nil {
		return HTTPCall{}, renderError(what+", look-up headers", err)
	}
	delete(call.Header, "Content-Type")
	return call, nil
}

// Finding3 is the three-valued answer of a look-up: found, absent, or (neither) not known.
type Finding3 struct {
	Found, Absent bool
	ProviderID    string
}

// JudgeLookup reads the answer to a look-up. Outside 2xx only an expression that reads `status` itself is believed: an
// error page must not pass for an empty list. An answer that is both found and absent, or that neither expression can
// read, is an error and proves nothing.
func (c *Connector) JudgeLookup(status int, body []byte) (Finding3, error) {
	what := "connector " + strconv.Quote(c.Name) + ", look-up"
	if c.Lookup == nil {
		return Finding3{}, holdpoint.Errorf(holdpoint.CodeNotAllowedNow, "%s: there is none", what)
	}
	response, err := decode(body)
	readable := err == nil
	vars := map[string]any{"status": types.Int(status), "response": adapter{exact: true}.NativeToValue(response)}
	holds := func(x *expression) (bool, error) {
		readsStatus := slices.Contains(x.reads, "status")
		if (status < 200 || status > 299) && !readsStatus || !readable && slices.Contains(x.reads, "response") {
			return false, errors.New("the answer cannot be judged")
		}
		v, err := x.eval(vars)
		if err != nil {
			return false, err
		}
		b, ok := v.(types.Bool)
		if !ok {
			return false, errors.New("${" + x.source + "} gives neither true nor false")
		}
		return bool(b), nil
	}
	found, foundErr := holds(c.Lookup.found)
	absent, absentErr := holds(c.Lookup.absent)
	switch {
	case found && absent:
		return Finding3{}, holdpoint.Errorf(holdpoint.CodeRender, "%s: make found and absent exclude each other", what)
	case foundErr != nil && absentErr != nil:
		return Finding3{}, holdpoint.Errorf(holdpoint.CodeRender, "%s: status %d: %v", what, status, foundErr)
	case foundErr != nil && absent && !slices.Contains(c.Lookup.absent.reads, "status"):
		// Half of the evidence could not be read: that is no proof of absence.
		return Finding3{}, holdpoint.Errorf(holdpoint.CodeRender, "%s: status %d: %v", what, status, foundErr)
	}
	answer := Finding3{Found: found, Absent: absent}
	if found && c.Lookup.ProviderID != "" {
		answer.ProviderID = lookupText(response, c.Lookup.ProviderID)
	}
	return answer, nil
}

// lookupText gives the string or number at a JSON Pointer, or "".
func lookupText(v any, pointer string) string {
	for _, token := range strings.Split(pointer, "/")[1:] {
		token = strings.ReplaceAll(strings.ReplaceAll(token, "~1", "/"), "~0", "~")
		switch node := v.(type) {
		case map[string]any:
			v = node[token]
		case []any:
			i, err := strconv.Atoi(token)
			if err != nil || i < 0 || i >= len(node) || strconv.Itoa(i) != token {
				return ""
			}
			v = node[i]
		default:
			return ""
		}
	}
	s, err := asText(adapter{exact: true}.NativeToValue(v))
	if err != nil {
		return ""
	}
	return s
}

// MissingSecrets lists the references ("env:NAME", "file:PATH") that cannot be resolved here, sorted.
func (c *Connector) MissingSecrets(s Secrets) []string {
	names := c.url.text.secrets()
	for _, h := range c.headers {
		names = append(names, h.value.secrets()...)
	}
	if c.body != nil {
		names = append(names, c.body.secrets()...)
	}
	if c.Lookup != nil {
		names = append(names, c.Lookup.url.text.secrets()...)
		for _, h := range c.Lookup.headers {
			names = append(names, h.value.secrets()...)
		}
	}
	return missing(names, s)
}

func missing(names []string, s Secrets) []string {
	slices.Sort(names)
	var lost []string
	for _, name := range slices.Compact(names) {
		if _, err := secret(name).value(s); err != nil {
			lost = append(lost, name)
		}
	}
	return lost
}
