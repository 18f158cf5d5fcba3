package policy

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
)

// Finding is one thing that the check of a document has to say. Line and Column count from 1 and point into the
// document. Severity is "error" or "warning". Code is stable; Message says what to do.
type Finding struct {
	Line     int    `json:"line"`
	Column   int    `json:"column"`
	Severity string `json:"severity"`
	Code     string `json:"code"`
	Message  string `json:"message"`
}

// String gives the finding the way compilers do.
func (f Finding) String() string {
	return fmt.Sprintf("%d:%d: %s: %s (%s)", f.Line, f.Column, f.Severity, f.Message, f.Code)
}

// The severities.
const (
	SeverityError   = "error"
	SeverityWarning = "warning"
)

// Limits of a document. Fail closed: a larger one is refused.
const (
	maxDocument = 1 << 20
	maxFindings = 200
	maxSpan     = 3650 * 24 * time.Hour
)

// later is the code of what this version refuses by name because a later version brings it.
const later = "not_in_this_version"

// reader collects findings while the document is read.
type reader struct {
	findings []Finding
	failed   bool
}

func (r *reader) report(n *yaml.Node, severity, code, format string, args ...any) {
	line, column := 1, 1
	if n != nil {
		line, column = max(n.Line, 1), max(n.Column, 1)
	}
	first := severity == SeverityError && !r.failed // is always told
	r.failed = r.failed || first
	if len(r.findings) < maxFindings || first {
		r.findings = append(r.findings, Finding{line, column, severity, code, fmt.Sprintf(format, args...)})
	}
}

func (r *reader) fail(n *yaml.Node, code, format string, args ...any) {
	r.report(n, SeverityError, code, format, args...)
}

func (r *reader) warn(n *yaml.Node, code, format string, args ...any) {
	r.report(n, SeverityWarning, code, format, args...)
}

// sorted gives the findings in document order.
func (r *reader) sorted() []Finding {
	slices.SortStableFunc(r.findings, func(a, b Finding) int {
		if a.Line != b.Line {
			return a.Line - b.Line
		}
		return a.Column - b.Column
	})
	return r.findings
}

var yamlLine = regexp.MustCompile(`^yaml: (?:line (\d+): )?(.*)$`)

// load parses YAML into its root node. Aliases, merge keys and a second document are refused: a rule stands where it
// is read.
func (r *reader) load(doc []byte) *yaml.Node {
	if len(doc) > maxDocument {
		r.fail(nil, "too_large", "keep the document under %d bytes", maxDocument)
		return nil
	}
	decoder := yaml.NewDecoder(bytes.NewReader(doc))
	var root yaml.Node
	if err := decoder.Decode(&root); err != nil {
		if errors.Is(err, io.EOF) {
			r.fail(nil, "missing", "write a policy: the document is empty")
			return nil
		}
		at, message := &yaml.Node{}, err.Error()
		if m := yamlLine.FindStringSubmatch(message); m != nil {
			at.Line, _ = strconv.Atoi(m[1])
			message = m[2]
		}
		r.fail(at, "syntax", "write well-formed YAML: %s", message)
		return nil
	}
	if err := decoder.Decode(&yaml.Node{}); !errors.Is(err, io.EOF) {
		r.fail(nil, "syntax", "keep one document in the file")
		return nil
	}
	if len(root.Content) != 1 || !r.plainYAML(root.Content[0], 0) {
		return nil
	}
	return root.Content[0]
}

func (r *reader) plainYAML(n *yaml.Node, depth int) bool {
	switch {
	case depth > maxDepth:
		r.fail(n, "too_deep", "nest at most %d levels", maxDepth)
		return false
	case n.Kind == yaml.AliasNode || n.Anchor != "":
		r.fail(n, "syntax", "write the value out: anchors and aliases are not read")
		return false
	case n.Tag == "!!merge" || n.Tag == "!!binary" || n.Style&yaml.TaggedStyle != 0:
		r.fail(n, "syntax", "write the value out: tags and merge keys are not read")
		return false
	}
	for _, c := range n.Content {
		if !r.plainYAML(c, depth+1) {
			return false
		}
	}
	return true
}

// entry is one key of a mapping with its value.
type entry struct{ key, value *yaml.Node }

// object reads one mapping strictly: what nobody has asked for by close is an unknown key.
type object struct {
	*reader
	node    *yaml.Node
	what    string // how findings name it: `connector "crm"`
	entries []entry
	taken   map[string]bool
}

// object opens n as a mapping. Anything else is reported and opened as an empty one.
func (r *reader) object(n *yaml.Node, what string) *object {
	o := &object{reader: r, node: n, what: what, taken: map[string]bool{}}
	if n == nil {
		return o
	}
	if n.Kind != yaml.MappingNode {
		r.fail(n, "invalid_value", "%s is a mapping of names to values", what)
		return o
	}
	seen := map[string]bool{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		k := n.Content[i]
		if k.Kind != yaml.ScalarNode {
			r.fail(k, "invalid_value", "use plain names as keys in %s", what)
			continue
		}
		if seen[k.Value] {
			r.fail(k, "duplicate_key", "write %q once in %s", k.Value, what)
			continue
		}
		seen[k.Value] = true
		o.entries = append(o.entries, entry{k, n.Content[i+1]})
	}
	return o
}

// has gives the value of a key, or nil.
func (o *object) has(key string) *yaml.Node {
	o.taken[key] = true
	for _, e := range o.entries {
		if e.key.Value == key {
			return e.value
		}
	}
	return nil
}

// need is has, and reports the absence of the key.
func (o *object) need(key, advice string) *yaml.Node {
	n := o.has(key)
	if n == nil {
		o.fail(o.node, "missing", "%s needs %q: %s", o.what, key, advice)
	}
	return n
}

// refuse reports a key that a later version brings.
func (o *object) refuse(key, instead string) {
	o.taken[key] = true
	for _, e := range o.entries {
		if e.key.Value == key {
			o.fail(e.key, later, "%q is not in this version: %s", key, instead)
		}
	}
}

// close reports every key that was not asked for.
func (o *object) close() {
	for _, e := range o.entries {
		if !o.taken[e.key.Value] {
			known := make([]string, 0, len(o.taken))
			for k := range o.taken {
				known = append(known, k)
			}
			slices.Sort(known)
			o.fail(e.key, "unknown_key", "%q is not a key of %s; its keys are %s", e.key.Value, o.what, strings.Join(known, ", "))
		}
	}
}

// string reads a plain scalar string; empty is reported.
func (r *reader) string(n *yaml.Node, what string) string {
	if n == nil {
		return ""
	}
	if n.Kind != yaml.ScalarNode || n.Tag == "!!null" || n.Value == "" {
		r.fail(n, "invalid_value", "%s is a non-empty string", what)
		return ""
	}
	if hasControl(n.Value) {
		r.fail(n, "invalid_value", "%s is one line without control characters", what)
		return ""
	}
	return n.Value
}

func (o *object) string(key, def string) string {
	if n := o.has(key); n != nil {
		return o.reader.string(n, strconv.Quote(key))
	}
	return def
}

// strings reads a list of strings without repetitions.
func (o *object) strings(key string) (values []string, nodes []*yaml.Node) {
	n := o.has(key)
	if n == nil {
		return nil, nil
	}
	if n.Kind != yaml.SequenceNode {
		o.fail(n, "invalid_value", "%q is a list", key)
		return nil, nil
	}
	for _, c := range n.Content {
		v := o.reader.string(c, "each entry of "+strconv.Quote(key))
		if v == "" {
			continue
		}
		if slices.Contains(values, v) {
			o.fail(c, "invalid_value", "list %q once in %q", v, key)
			continue
		}
		values, nodes = append(values, v), append(nodes, c)
	}
	return values, nodes
}

func (o *object) integer(key string, def, least, most int) int {
	n := o.has(key)
	if n == nil {
		return def
	}
	i, err := strconv.Atoi(n.Value)
	if n.Kind != yaml.ScalarNode || n.Tag != "!!int" || err != nil || i < least || i > most {
		o.fail(n, "invalid_value", "%q is a whole number from %d to %d", key, least, most)
		return def
	}
	return i
}

func (o *object) boolean(key string) bool {
	n := o.has(key)
	if n == nil {
		return false
	}
	if n.Kind != yaml.ScalarNode || n.Tag != "!!bool" {
		o.fail(n, "invalid_value", "%q is true or false", key)
	}
	return strings.EqualFold(n.Value, "true")
}

// ParseDuration reads a positive duration: Go's notation plus `d` for 24 hours, for example 90s, 1d12h or 30d.
func ParseDuration(s string) (time.Duration, error) {
	bad := fmt.Errorf("%q is not a duration such as 90s, 5m or 30d", s)
	days, rest := time.Duration(0), s
	if i := strings.IndexByte(s, 'd'); i >= 0 {
		n, err := strconv.ParseUint(s[:i], 10, 32)
		if err != nil {
			return 0, bad
		}
		days, rest = time.Duration(min(n, math.MaxUint16))*24*time.Hour, s[i+1:]
	}
	d := time.Duration(0)
	if rest != "" || s == "" {
		var err error
		if d, err = time.ParseDuration(rest); err != nil || d < 0 {
			return 0, bad
		}
	}
	if days > maxSpan || d > maxSpan || days+d > maxSpan {
		return 0, fmt.Errorf("%q is longer than ten years", s)
	}
	if days+d <= 0 {
		return 0, fmt.Errorf("%q is not longer than nothing", s)
	}
	return days + d, nil
}

func (r *reader) duration(n *yaml.Node, what string) time.Duration {
	d, err := ParseDuration(n.Value)
	if n.Kind != yaml.ScalarNode {
		err = errors.New("a duration is a single value such as 90s, 5m or 30d")
	}
	if err != nil {
		r.fail(n, "invalid_value", "%s: %v", what, err)
	}
	return d
}

func (o *object) duration(key string, def time.Duration) time.Duration {
	if n := o.has(key); n != nil {
		return o.reader.duration(n, strconv.Quote(key))
	}
	return def
}

// pointer reads a JSON Pointer (RFC 6901) to something inside the document.
func (r *reader) pointer(n *yaml.Node, what string) string {
	p := r.string(n, what)
	if p != "" && !isPointer(p) {
		r.fail(n, "invalid_value", "%s is a JSON Pointer such as /customer/email", what)
		return ""
	}
	return p
}

func (o *object) pointer(key string) string {
	if n := o.has(key); n != nil {
		return o.reader.pointer(n, strconv.Quote(key))
	}
	return ""
}

func isPointer(p string) bool {
	if !strings.HasPrefix(p, "/") {
		return false
	}
	for i := range p {
		if p[i] == '~' && (i+1 == len(p) || (p[i+1] != '0' && p[i+1] != '1')) {
			return false
		}
	}
	return true
}

var nameForm = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$`)

// name reports a name that cannot stand in slots, addresses and metrics.
func (r *reader) name(n *yaml.Node, what string) bool {
	if n.Kind == yaml.ScalarNode && nameForm.MatchString(n.Value) {
		return true
	}
	r.fail(n, "invalid_value", "%s is named with up to 64 letters, digits, dots, dashes and underscores", what)
	return false
}

// isFilePath reports whether p is a clean relative path that stays below its directory.
func isFilePath(p string) bool {
	return p != "" && len(p) <= 255 && path.Clean(p) == p && !path.IsAbs(p) && p != "." && p != ".." &&
		!strings.HasPrefix(p, "../") && !strings.ContainsAny(p, `\:`) && !hasControl(p)
}
