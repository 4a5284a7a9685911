package guest

import (
	"encoding/binary"
	"testing"
)

func TestPayloadOf(t *testing.T) {
	image := make([]byte, 4*sectorBytes)
	image[setupSectsAt] = 2 // so the payload counts from the fourth sector
	copy(image[magicAt:], "HdrS")
	binary.LittleEndian.PutUint32(image[payloadOffsetAt:], 16)
	binary.LittleEndian.PutUint32(image[payloadLengthAt:], 5)
	copy(image[3*sectorBytes+16:], "hello")
	if have, err := payloadOf(image); err != nil || string(have) != "hello" {
		t.Errorf("have %q, %v", have, err)
	}
	binary.LittleEndian.PutUint32(image[payloadLengthAt:], sectorBytes)
	if _, err := payloadOf(image); err == nil {
		t.Error("a payload beyond the end was taken")
	}
	if _, err := payloadOf(image[:100]); err == nil {
		t.Error("a short file was taken")
	}
	copy(image[magicAt:], "none")
	if _, err := payloadOf(image); err == nil {
		t.Error("a file that is no bzImage was taken")
	}
}
