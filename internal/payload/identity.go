package payload

import (
	"regexp"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/holdpoint/holdpoint"
)

// maxKey is the length of an idempotency key in bytes.
const maxKey = 255

// Operation is the identity of a business operation in parts: which system, which record there, what is done, and for
// which revision of the record. Parts are UTF-8 without control characters, of any length. Revision may be empty.
type Operation struct {
	Source   string `json:"source"`
	Record   string `json:"record"`
	Action   string `json:"action"`
	Revision string `json:"revision"`
}

// hashedPart marks a part of a composed key that stands for a longer one.
const hashedPart = "sha256:"

// maxPart is how long an encoded part may be before it is hashed.
const maxPart = 100

// Key composes the idempotency key: source/record/action, and /revision where there is one. Different operations never
// get the same key (short of a collision of SHA-256), and the same operation always the same: '/', '%' and space are
// percent-encoded inside a part; a part that is too long, not ASCII, or itself looks hashed is replaced by its SHA-256;
// a composition that is still longer than 255 bytes is hashed as a whole. Keep the Operation for people. The error is
// invalid_key.
func (o Operation) Key() (string, error) {
	parts := []string{o.Source, o.Record, o.Action}
	if o.Revision != "" {
		parts = append(parts, o.Revision)
	}
	encoded := make([]string, len(parts))
	for i, p := range parts {
		name := [...]string{"source", "record", "action", "revision"}[i]
		if p == "" {
			return "", holdpoint.Errorf(holdpoint.CodeInvalidKey, "The operation has no %s; name source, record and action.", name)
		}
		if !utf8.ValidString(p) || strings.ContainsFunc(p, unicode.IsControl) {
			return "", holdpoint.Errorf(holdpoint.CodeInvalidKey, "The operation's %s must be UTF-8 without control characters.", name)
		}
		encoded[i] = encodePart(p)
	}
	if key := strings.Join(encoded, "/"); len(key) <= maxKey {
		return key, nil
	}
	return hashedPart + Hash(lengthPrefixed(parts)), nil // without '/': no other key looks like it
}

func encodePart(p string) string {
	const hex = "0123456789ABCDEF"
	if strings.HasPrefix(p, hashedPart) {
		return hashedPart + Hash([]byte(p))
	}
	var b strings.Builder
	for i := range len(p) {
		switch c := p[i]; {
		case c > 0x7e || b.Len() > maxPart:
			return hashedPart + Hash([]byte(p))
		case c == '/' || c == '%' || c == ' ':
			b.Write([]byte{'%', hex[c>>4], hex[c&15]})
		default:
			b.WriteByte(c)
		}
	}
	if b.Len() > maxPart {
		return hashedPart + Hash([]byte(p))
	}
	return b.String()
}

// CheckKey says whether key may name a run: 1 to 255 visible ASCII characters. Keys are compared byte by byte and never
// normalised. The error is invalid_key and does not repeat the key.
func CheckKey(key string) error {
	if key == "" || len(key) > maxKey {
		return holdpoint.Errorf(holdpoint.CodeInvalidKey, "The key has %d characters; send 1 to %d.", len(key), maxKey)
	}
	for i := range len(key) {
		if key[i] < 0x21 || key[i] > 0x7e {
			return holdpoint.Errorf(holdpoint.CodeInvalidKey,
				"The key holds a character that is not visible ASCII at byte %d; send the upstream system's own id, or an operation.", i)
		}
	}
	return nil
}

// weakForms are the looks of keys that name a delivery or an execution rather than a business operation, in the order
// in which they are tried.
var weakForms = []struct {
	flag string
	form *regexp.Regexp
}{
	{"timestamp", regexp.MustCompile(`^(1[0-9]{9}|1[0-9]{12}|1[0-9]{15}|1[0-9]{18}|[12][0-9]{3}-[0-9]{2}-[0-9]{2}([T_][0-9:.Z+-]*)?)$`)},
	{"counter", regexp.MustCompile(`^[0-9]{1,9}$`)},
	{"execution", regexp.MustCompile(`(?i)^(n8n[-_:./])?(exec|execution|run|job|attempt)([-_]?id)?[-_:./#]?[0-9]+$`)},
	{"random_uuid", regexp.MustCompile(`(?i)^[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$`)},
	{"hash", regexp.MustCompile(`(?i)^(sha256[:=-])?([0-9a-f]{32}|[0-9a-f]{40}|[0-9a-f]{64})$`)},
}

// WeakLooks returns why a key looks like something that changes from one delivery to the next: "timestamp", "counter",
// "execution", "random_uuid" or "hash"; "" if it does not. It is a hint for people: many good upstream ids look like
// this, so no claim is refused for it. Ask it about plain keys only.
func WeakLooks(key string) (flag string) {
	for _, w := range weakForms {
		if w.form.MatchString(key) {
			return w.flag
		}
	}
	return ""
}
