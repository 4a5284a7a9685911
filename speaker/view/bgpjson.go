package view

import "encoding/json"

// MarshalJSON writes the communities as numbers, ascending.
func (s CommunitySet) MarshalJSON() ([]byte, error) { return json.Marshal(s.Communities()) }

// UnmarshalJSON reads the output of MarshalJSON, in any order.
func (s *CommunitySet) UnmarshalJSON(text []byte) error {
	var all []uint32
	err := json.Unmarshal(text, &all)
	*s = NewCommunitySet(all...)
	return err
}

// MarshalJSON writes the large communities as objects, ascending.
func (s LargeCommunitySet) MarshalJSON() ([]byte, error) { return json.Marshal(s.LargeCommunities()) }

// UnmarshalJSON reads the output of MarshalJSON, in any order.
func (s *LargeCommunitySet) UnmarshalJSON(text []byte) error {
	var all []LargeCommunity
	err := json.Unmarshal(text, &all)
	*s = NewLargeCommunitySet(all...)
	return err
}
