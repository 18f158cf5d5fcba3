package payload

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"slices"
	"strconv"
	"strings"

	"github.com/holdpoint/holdpoint"
)

// Check says whether doc is one JSON value that every parser reads in the same way. Size and depth are looked at
// first, in one bounded scan that allocates nothing. The error is too_large, too_deep, or invalid_json: not
// well-formed, more or less than one value, a duplicate member, invalid UTF-8, NUL, half of a surrogate pair.
func Check(doc []byte, l Limits) error {
	_, err := Canonical(doc, l)
	return err
}

// Canonical returns the canonical form of doc: no white space, members in the order of their UTF-16 code units and
// strings with the fewest escapes, as in RFC 8785. It differs from RFC 8785 in numbers, which stay exact decimals:
// 1, 1.0 and 1e0 are one number, -0 is 0, 2^53 and 2^53+1 are two. A huge exponent is kept as an exponent. Text is not
// normalised: NFC and NFD are two strings. Errors are those of Check.
func Canonical(doc []byte, l Limits) ([]byte, error) { return canonical(doc, nil, l) }

func canonical(doc []byte, ignore *pointerTree, l Limits) ([]byte, error) {
	if err := bounded(doc, l); err != nil {
		return nil, err
	}
	s := newScanner(doc)
	if err := s.document(ignore); err != nil {
		return nil, err.report()
	}
	return s.out, nil
}

// Fingerprint is the hex SHA-256 of the canonical form of doc, without the members and items that the JSON Pointers in
// ignore name. A pointer that names nothing in doc changes nothing. Store RuleHash(ignore) beside it: fingerprints are
// comparable under one rule only. Errors are those of Check, and invalid_policy for a pointer that is malformed or
// names the whole document.
func Fingerprint(doc []byte, ignore []string, l Limits) (fp string, err error) {
	tree, err := parsePointers(ignore)
	if err != nil {
		return "", err
	}
	c, err := canonical(doc, tree, l)
	if err != nil {
		return "", err
	}
	return Hash(c), nil
}

// RuleHash names a list of ignored JSON Pointers, in hex. Neither order nor repetition counts; the empty list has a
// fixed hash of its own.
func RuleHash(ignore []string) string {
	rule := slices.Clone(ignore)
	slices.Sort(rule)
	h := sha256.New()
	h.Write([]byte("holdpoint fingerprint rule 1"))
	h.Write(lengthPrefixed(slices.Compact(rule)))
	return hex.EncodeToString(h.Sum(nil))
}

// Hash is the hex SHA-256 of b.
func Hash(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

// lengthPrefixed joins parts so that different lists never give the same bytes.
func lengthPrefixed(parts []string) []byte {
	var b []byte
	for _, p := range parts {
		b = binary.BigEndian.AppendUint64(b, uint64(len(p)))
		b = append(b, p...)
	}
	return b
}

// pointerTree is a set of JSON Pointers (RFC 6901) by token. The nil tree is empty.
type pointerTree struct {
	below map[string]*pointerTree
	named bool
}

// unescapePointer decodes one token.
var unescapePointer = strings.NewReplacer("~1", "/", "~0", "~")

func parsePointers(pointers []string) (*pointerTree, error) {
	if len(pointers) == 0 {
		return nil, nil
	}
	root := &pointerTree{}
	for _, p := range pointers {
		if !strings.HasPrefix(p, "/") || badTilde(p) {
			return nil, holdpoint.Errorf(holdpoint.CodeInvalidPolicy,
				"The ignored field %q is not a JSON Pointer to a part of the payload; write it like /delivered_at.", p)
		}
		at := root
		for _, token := range strings.Split(p[1:], "/") {
			token = unescapePointer.Replace(token)
			next := at.below[token]
			if next == nil {
				next = &pointerTree{}
				if at.below == nil {
					at.below = map[string]*pointerTree{}
				}
				at.below[token] = next
			}
			at = next
		}
		at.named = true
	}
	return root, nil
}

func badTilde(pointer string) bool {
	for i := range len(pointer) {
		if pointer[i] == '~' && (i+1 == len(pointer) || pointer[i+1] != '0' && pointer[i+1] != '1') {
			return true
		}
	}
	return false
}

// member gives the part of the tree below a member and whether the member itself is named.
func (t *pointerTree) member(name []byte) (*pointerTree, bool) {
	if t == nil {
		return nil, false
	}
	next := t.below[string(name)]
	return next, next != nil && next.named
}

// item is member for an item of an array.
func (t *pointerTree) item(i int) (*pointerTree, bool) {
	if t == nil {
		return nil, false
	}
	return t.member([]byte(strconv.Itoa(i)))
}
