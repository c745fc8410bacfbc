package kvq

import "testing"

func TestTextThatIsNotUTF8IsReadAllTheSame(t *testing.T) {
	if got := text(&[]byte("caf\xe9 \xc3\xa9\x00rest")[0]); got != "caf\uFFFD \u00e9" {
		t.Fatalf("got %q", got)
	}
}
