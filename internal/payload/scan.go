package payload

import (
	"bytes"
	"slices"
	"strconv"
	"unicode/utf8"

	"github.com/holdpoint/holdpoint"
)

// Limits bounds a document. The zero value means 1 MiB and 100 levels.
type Limits struct {
	MaxBytes int // size of the document in bytes; 0 or less means 1 MiB
	MaxDepth int // levels of arrays and objects; 0 or less means 100, and 10,000 is the ceiling
}

const (
	defaultMaxBytes = 1 << 20
	defaultMaxDepth = 100
	ceilingDepth    = 10_000 // the scanner recurses once per level
)

func (l Limits) bytes() int {
	if l.MaxBytes <= 0 {
		return defaultMaxBytes
	}
	return l.MaxBytes
}

func (l Limits) depth() int {
	if l.MaxDepth <= 0 {
		return defaultMaxDepth
	}
	return min(l.MaxDepth, ceilingDepth)
}

// flaw is why a document is refused.
type flaw string

const (
	flawEnd       flaw = "it ends before its value does"
	flawSyntax    flaw = "it is not well-formed"
	flawTrailing  flaw = "something follows the value; send exactly one"
	flawDuplicate flaw = "an object has the same member twice; send each once"
	flawUTF8      flaw = "a string is not valid UTF-8"
	flawNUL       flaw = "a string holds the NUL character"
	flawSurrogate flaw = "a string holds half of a surrogate pair"
)

// scanError is a flaw and where it is. tokens is the path to it, innermost first.
type scanError struct {
	flaw   flaw
	offset int
	tokens []string
}

// report turns the flaw into the error that callers see; it names a place, never content.
func (e *scanError) report() error {
	return holdpoint.Errorf(holdpoint.CodeInvalidJSON, "The JSON is refused at byte %d: %s.", e.offset, string(e.flaw)).
		With("offset", e.offset)
}

// bounded checks size and depth without allocating. It counts brackets outside strings, so that it is right for every
// well-formed document and at worst too strict for a broken one.
func bounded(doc []byte, l Limits) error {
	if len(doc) > l.bytes() {
		return holdpoint.Errorf(holdpoint.CodeTooLarge, "The JSON is larger than %d bytes; send less.", l.bytes())
	}
	depth, inString := 0, false
	for i := 0; i < len(doc); i++ {
		switch c := doc[i]; {
		case inString && c == '\\':
			i++
		case c == '"':
			inString = !inString
		case inString:
		case c == '{' || c == '[':
			if depth++; depth > l.depth() {
				return holdpoint.Errorf(holdpoint.CodeTooDeep, "The JSON is nested deeper than %d levels; flatten it.", l.depth())
			}
		case c == '}' || c == ']':
			depth--
		}
	}
	return nil
}

// scanner reads one JSON value and writes its canonical form, in one pass. Call bounded first.
type scanner struct {
	doc     []byte
	pos     int
	out     []byte
	members []member // a stack: each open object owns the part above its base
	scratch []byte
}

// member is one member of an open object: its decoded name, and where `"name":value` stands in out. An ignored member
// is remembered for the sake of duplicates, with nothing in out.
type member struct {
	name       []byte
	start, end int
	ignored    bool
}

func newScanner(doc []byte) *scanner {
	return &scanner{doc: doc, out: make([]byte, 0, len(doc)+16)}
}

// document reads exactly one value and leaves out what ignore names.
func (s *scanner) document(ignore *pointerTree) *scanError {
	if err := s.value(ignore); err != nil {
		return err
	}
	s.space()
	if s.pos < len(s.doc) {
		return s.fail(flawTrailing)
	}
	return nil
}

func (s *scanner) fail(f flaw) *scanError { return &scanError{flaw: f, offset: s.pos} }

// wrong is an unexpected byte, or the end.
func (s *scanner) wrong() *scanError {
	if s.pos >= len(s.doc) {
		return s.fail(flawEnd)
	}
	return s.fail(flawSyntax)
}

func (s *scanner) space() {
	for s.pos < len(s.doc) {
		switch s.doc[s.pos] {
		case ' ', '\t', '\n', '\r':
			s.pos++
		default:
			return
		}
	}
}

// peek skips white space and returns the next byte, 0 at the end.
func (s *scanner) peek() byte {
	s.space()
	if s.pos >= len(s.doc) {
		return 0
	}
	return s.doc[s.pos]
}

func (s *scanner) value(ignore *pointerTree) *scanError {
	switch c := s.peek(); {
	case c == '{':
		return s.object(ignore)
	case c == '[':
		return s.array(ignore)
	case c == '"':
		text, plain, err := s.text()
		if err != nil {
			return err
		}
		s.out = appendText(s.out, text, plain)
		return nil
	case c == '-' || isDigit(c):
		return s.number()
	case c == 't':
		return s.literal("true")
	case c == 'f':
		return s.literal("false")
	case c == 'n':
		return s.literal("null")
	default:
		return s.wrong()
	}
}

func (s *scanner) literal(word string) *scanError {
	for i := range len(word) {
		if s.pos >= len(s.doc) || s.doc[s.pos] != word[i] {
			return s.wrong()
		}
		s.pos++
	}
	s.out = append(s.out, word...)
	return nil
}

func (s *scanner) array(ignore *pointerTree) *scanError {
	s.pos++
	s.out = append(s.out, '[')
	if s.peek() == ']' {
		s.pos++
		s.out = append(s.out, ']')
		return nil
	}
	for i := 0; ; i++ {
		before := len(s.out)
		if s.out[before-1] != '[' {
			s.out = append(s.out, ',')
		}
		below, drop := ignore.item(i)
		if err := s.value(below); err != nil {
			err.tokens = append(err.tokens, strconv.Itoa(i))
			return err
		}
		if drop {
			s.out = s.out[:before]
		}
		switch s.peek() {
		case ',':
			s.pos++
		case ']':
			s.pos++
			s.out = append(s.out, ']')
			return nil
		default:
			return s.wrong()
		}
	}
}

func (s *scanner) object(ignore *pointerTree) *scanError {
	s.pos++
	s.out = append(s.out, '{')
	base, body := len(s.members), len(s.out)
	if s.peek() == '}' {
		s.pos++
		s.out = append(s.out, '}')
		return nil
	}
	for {
		if err := s.member(ignore); err != nil {
			return err
		}
		switch s.peek() {
		case ',':
			s.pos++
		case '}':
			if err := s.order(base, body); err != nil {
				return err
			}
			s.pos++
			s.out = append(s.out, '}')
			return nil
		default:
			return s.wrong()
		}
	}
}

func (s *scanner) member(ignore *pointerTree) *scanError {
	if s.peek() != '"' {
		return s.wrong()
	}
	name, plain, err := s.text()
	if err != nil {
		return err
	}
	if s.peek() != ':' {
		return s.wrong()
	}
	s.pos++
	before := len(s.out)
	if s.out[before-1] != '{' {
		s.out = append(s.out, ',')
	}
	start := len(s.out)
	s.out = appendText(s.out, name, plain)
	s.out = append(s.out, ':')
	below, drop := ignore.member(name)
	if err := s.value(below); err != nil {
		err.tokens = append(err.tokens, string(name))
		return err
	}
	if drop {
		s.out = s.out[:before]
	}
	s.members = append(s.members, member{name: name, start: start, end: len(s.out), ignored: drop})
	return nil
}

// order puts the members of the object that ends here into canonical order and refuses duplicates.
func (s *scanner) order(base, body int) *scanError {
	members := s.members[base:]
	defer func() { s.members = s.members[:base] }()
	rising := true
	for i := 1; i < len(members) && rising; i++ {
		rising = compareNames(members[i-1].name, members[i].name) < 0
	}
	if rising {
		return nil
	}
	slices.SortFunc(members, func(a, b member) int { return compareNames(a.name, b.name) })
	for i := 1; i < len(members); i++ {
		if bytes.Equal(members[i-1].name, members[i].name) {
			err := s.fail(flawDuplicate)
			err.tokens = append(err.tokens, string(members[i].name))
			return err
		}
	}
	s.scratch = append(s.scratch[:0], s.out[body:]...)
	s.out = s.out[:body]
	for _, m := range members {
		if m.ignored {
			continue
		}
		if len(s.out) > body {
			s.out = append(s.out, ',')
		}
		s.out = append(s.out, s.scratch[m.start-body:m.end-body]...)
	}
	return nil
}

// compareNames orders by UTF-16 code units (RFC 8785, section 3.2.3). In valid UTF-8 that differs from the order of
// bytes only where one side is above U+FFFF and the other in U+E000 to U+FFFF.
func compareNames(a, b []byte) int {
	for i := range min(len(a), len(b)) {
		if a[i] != b[i] {
			return int(unitRank(a[i])) - int(unitRank(b[i]))
		}
	}
	return len(a) - len(b)
}

func unitRank(c byte) byte {
	if c == 0xEE || c == 0xEF {
		return c + 0x10
	}
	return c
}

// text reads a string and returns it decoded. plain means that the bytes between the quotes were free of escapes, so
// that they are their own canonical form; they then share the document's memory.
func (s *scanner) text() (decoded []byte, plain bool, _ *scanError) {
	s.pos++
	start, ascii := s.pos, true
	for s.pos < len(s.doc) {
		switch c := s.doc[s.pos]; {
		case c == '"':
			raw := s.doc[start:s.pos]
			if !ascii && !utf8.Valid(raw) {
				return nil, false, s.fail(flawUTF8)
			}
			s.pos++
			return raw, true, nil
		case c == '\\':
			decoded, err := s.escapedText(start)
			return decoded, false, err
		case c < 0x20:
			return nil, false, s.control()
		case c >= utf8.RuneSelf:
			ascii = false
		}
		s.pos++
	}
	return nil, false, s.fail(flawEnd)
}

// escapedText goes on at the first escape of a string.
func (s *scanner) escapedText(start int) ([]byte, *scanError) {
	decoded := append(make([]byte, 0, s.pos-start+32), s.doc[start:s.pos]...)
	for s.pos < len(s.doc) {
		switch c := s.doc[s.pos]; {
		case c == '"':
			if !utf8.Valid(decoded) {
				return nil, s.fail(flawUTF8)
			}
			s.pos++
			return decoded, nil
		case c == '\\':
			r, err := s.escape()
			if err != nil {
				return nil, err
			}
			decoded = utf8.AppendRune(decoded, r)
			continue
		case c < 0x20:
			return nil, s.control()
		default:
			decoded = append(decoded, c)
		}
		s.pos++
	}
	return nil, s.fail(flawEnd)
}

func (s *scanner) control() *scanError {
	if s.doc[s.pos] == 0 {
		return s.fail(flawNUL)
	}
	return s.fail(flawSyntax)
}

// escape reads one escape, or the two of a surrogate pair.
func (s *scanner) escape() (rune, *scanError) {
	s.pos++
	if s.pos >= len(s.doc) {
		return 0, s.fail(flawEnd)
	}
	c := s.doc[s.pos]
	if i := bytes.IndexByte([]byte(`"\/bfnrt`), c); i >= 0 {
		s.pos++
		return rune("\"\\/\b\f\n\r\t"[i]), nil
	}
	if c != 'u' {
		return 0, s.fail(flawSyntax)
	}
	r, err := s.hex4()
	switch {
	case err != nil:
		return 0, err
	case r == 0:
		return 0, s.fail(flawNUL)
	case r < 0xD800 || r > 0xDFFF:
		return r, nil
	case r > 0xDBFF:
		return 0, s.fail(flawSurrogate)
	}
	for _, want := range []byte(`\u`) {
		if s.pos >= len(s.doc) {
			return 0, s.fail(flawEnd)
		}
		if s.doc[s.pos] != want {
			return 0, s.fail(flawSurrogate)
		}
		s.pos++
	}
	s.pos-- // hex4 starts at the u
	low, err := s.hex4()
	switch {
	case err != nil:
		return 0, err
	case low < 0xDC00 || low > 0xDFFF:
		return 0, s.fail(flawSurrogate)
	}
	return 0x10000 + (r-0xD800)<<10 + (low - 0xDC00), nil
}

// hex4 reads the u and the four digits after it.
func (s *scanner) hex4() (rune, *scanError) {
	var r rune
	for range 4 {
		s.pos++
		if s.pos >= len(s.doc) {
			return 0, s.fail(flawEnd)
		}
		switch c := s.doc[s.pos]; {
		case isDigit(c):
			r = r<<4 | rune(c-'0')
		case c >= 'a' && c <= 'f', c >= 'A' && c <= 'F':
			r = r<<4 | rune(c|0x20-'a'+10)
		default:
			return 0, s.fail(flawSyntax)
		}
	}
	s.pos++
	return r, nil
}

func isDigit(c byte) bool { return c >= '0' && c <= '9' }

// appendText writes a string in canonical form: only what must be escaped is (RFC 8785, section 3.2.2.2).
func appendText(out, text []byte, plain bool) []byte {
	out = append(out, '"')
	if plain {
		out = append(out, text...)
		return append(out, '"')
	}
	const hex = "0123456789abcdef"
	for _, c := range text {
		switch {
		case c == '"' || c == '\\':
			out = append(out, '\\', c)
		case c >= 0x20:
			out = append(out, c)
		case c == '\b':
			out = append(out, '\\', 'b')
		case c == '\t':
			out = append(out, '\\', 't')
		case c == '\n':
			out = append(out, '\\', 'n')
		case c == '\f':
			out = append(out, '\\', 'f')
		case c == '\r':
			out = append(out, '\\', 'r')
		default:
			out = append(out, '\\', 'u', '0', '0', hex[c>>4], hex[c&15])
		}
	}
	return append(out, '"')
}
