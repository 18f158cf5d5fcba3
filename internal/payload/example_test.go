package payload_test

import (
	"bytes"
	"fmt"

	"github.com/holdpoint/holdpoint/internal/payload"
)

func ExampleCheck() {
	fmt.Println(payload.Check([]byte(`{"amount": 10, "amount": 9999}`), payload.Limits{}))
	// Output: invalid_json: The JSON is refused at byte 29: an object has the same member twice; send each once.
}

func ExampleCanonical() {
	c, _ := payload.Canonical([]byte(`{ "total": 1.50, "id": 9007199254740993, "big": 1E400, "A": "\u00e9" }`), payload.Limits{})
	fmt.Println(string(c))
	// Output: {"A":"é","big":1e+400,"id":9007199254740993,"total":1.5}
}

func ExampleFingerprint() {
	ignore := []string{"/delivered_at"}
	first, _ := payload.Fingerprint([]byte(`{"id":7,"delivered_at":"10:00"}`), ignore, payload.Limits{})
	second, _ := payload.Fingerprint([]byte(`{"delivered_at":"10:05", "id":7.0}`), ignore, payload.Limits{})
	fmt.Println(first == second)
	// Output: true
}

func ExampleOperation_Key() {
	a, _ := payload.Operation{Source: "shop", Record: "order/1", Action: "refund", Revision: "2"}.Key()
	b, _ := payload.Operation{Source: "shop/order", Record: "1", Action: "refund", Revision: "2"}.Key()
	fmt.Println(a)
	fmt.Println(b)
	// Output:
	// shop/order%2F1/refund/2
	// shop%2Forder/1/refund/2
}

func ExampleDerivedKey() {
	chain := []payload.Identity{{Key: "order-1"}}
	for _, key := range []string{"order-10", "order-1-v2", "order-1retry"} {
		_, derived := payload.DerivedKey(chain, payload.Identity{Key: key})
		fmt.Println(key, derived)
	}
	// Output:
	// order-10 false
	// order-1-v2 true
	// order-1retry true
}

func ExampleContract_Judge() {
	contract, _ := payload.CompileContract("reply", []byte(`{"type": "object", "required": ["reply"],
		"properties": {"reply": {"type": "string"}, "label": {"enum": ["faq", "refund"]}}}`))
	for _, output := range []string{`{"reply": "Hello", "label": "faq"}`, `{"label": "other"}`, `"Sure! {\"reply\": \"Hello\"}"`, `"{\"reply\": \"Hel"`} {
		v := contract.Judge([]byte(output), "stop", payload.Limits{})
		fmt.Printf("draft=%s class=%s\n", v.Draft, v.Class)
		for _, f := range v.Faults {
			fmt.Printf("  %q %s: %s\n", f.Pointer, f.Code, f.Message)
		}
	}
	// Output:
	// draft={"reply": "Hello", "label": "faq"} class=
	// draft= class=schema
	//   "/label" enum: must be one of "faq", "refund"
	//   "/reply" required: is missing
	// draft= class=not_json
	//   "" prose: the answer must start with its JSON object; nothing may come before
	// draft= class=truncated
	//   "/reply" unterminated: the JSON ends before it is complete; answer shorter or allow more tokens
}

func ExampleKey_Seal() {
	master, _ := payload.NewMaster(bytes.Repeat([]byte{7}, 32))
	key, wrapped, _ := master.NewKey("run:acme:r1") // store wrapped
	sealed := key.Seal("payload", []byte("content"))

	key, _ = master.Unwrap("run:acme:r1", wrapped)
	plain, _ := key.Open("payload", sealed)
	fmt.Println(string(plain), key)
	_, err := key.Open("draft", sealed)
	fmt.Println(err != nil)
	// Output:
	// content [key]
	// true
}
