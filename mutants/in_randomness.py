"""Faults in sampling, in the streams of coins and noise, and in their keys."""

from __future__ import annotations

from mutants.fault import Fault, in_file

MECHANISM = "dp/test_mechanism.py"
STREAMS = "dp/test_streams.py"

ONE_RECORD = in_file(MECHANISM, "test_one_record_moves_one_block_by_at_most_the_clipping_norm[0-shared]")

SAMPLING = (
    Fault(
        "a fixed number of records, by shuffling",
        "dp/sampling.py",
        "self.coins.coins(self._records, self.rate).nonzero().squeeze(1)",
        "self.coins.normals((self._records,)).argsort()[: round(self._records * self.rate)].sort().values",
        in_file(STREAMS, "test_samples_are_binomial_and_records_independent"),
    ),
    Fault(
        "a sample is never empty",
        "dp/sampling.py",
        "self.coins.coins(self._records, self.rate).nonzero().squeeze(1)",
        "(self.coins.coins(self._records, self.rate).nonzero().squeeze(1).tolist() or [0])",
        in_file(STREAMS, "test_an_empty_sample_stays_empty"),
    ),
    Fault(
        "coins of twice the rate",
        "dp/streams.py",
        "math.floor(rate * _COIN_SCALE)",
        "math.floor(min(2 * rate, 1 - 2**-53) * _COIN_SCALE)",
        in_file(STREAMS, "test_coins_have_the_rate[0.013]"),
    ),
    Fault(
        "coins with a rate in float32",
        "dp/streams.py",
        "math.floor(rate * _COIN_SCALE)",
        "math.floor(float(np.float32(rate)) * _COIN_SCALE)",
        in_file(STREAMS, "test_coins_are_exact_to_the_last_bit"),
    ),
    Fault(
        "rate of the realised number of records",
        "dp/training.py",
        "self._sampler(name, plan.rate)",
        "self._sampler(name, self._config.batch_size / len(self._records))",
        ONE_RECORD,
    ),
    Fault(
        "one sample for both streams",
        "dp/training.py",
        'f"{name}/coins"',
        '"coins"',
        in_file(MECHANISM, "test_streams_sample_independently"),
    ),
    Fault(
        "coins from the stream of the noise",
        "dp/training.py",
        'f"{name}/coins"',
        'f"{name}/noise"',
        in_file(MECHANISM, "test_coins_and_noise_of_all_streams_have_keystreams_of_their_own"),
    ),
    Fault(
        "one noise for both streams",
        "dp/training.py",
        'f"{name}/noise"',
        '"noise"',
        in_file(MECHANISM, "test_coins_and_noise_of_all_streams_have_keystreams_of_their_own"),
    ),
)

RANDOMNESS = (
    Fault(
        "all purposes share one keystream",
        "dp/streams.py",
        "hmac.digest(self._key, purpose.encode(),",
        'hmac.digest(self._key, b"",',
        in_file(STREAMS, "test_a_stream_never_repeats_itself_and_purposes_share_nothing"),
    ),
    Fault(
        "every draw starts the keystream anew",
        "dp/streams.py",
        "self._position += 8 * count",
        "self.seek(0)",
        in_file(STREAMS, "test_a_stream_never_repeats_itself_and_purposes_share_nothing"),
    ),
    Fault(
        "the same key in every run",
        "dp/streams.py",
        "cls(secrets.token_bytes(KEY_BYTES),",
        "cls(bytes(KEY_BYTES),",
        in_file(STREAMS, "test_secure_sources_never_repeat"),
    ),
    Fault(
        "a seeded source calls itself secure",
        "dp/streams.py",
        '"seeded:aes-256-ctr", False)',
        '"secure:aes-256-ctr/os-entropy", False)',
        in_file(STREAMS, "test_seeded_sources_repeat_and_say_so"),
    ),
    Fault(
        "a radius of one word, whose tail is cut",
        "dp/streams.py",
        "uniform = low.add_(0.5).mul_(unit).add_(high).mul_(unit)",
        "uniform = high.add(0.5).mul_(unit)",
        in_file(STREAMS, "test_the_tail_reaches_twelve_deviations"),
    ),
    Fault(
        "angle and radius from the same word",
        "dp/streams.py",
        "angle = turn.mul_(",
        "angle = high.mul_(",
        in_file(STREAMS, "test_normals_are_standard_normal"),
    ),
    Fault(
        "both halves of Box-Muller the same",
        "dp/streams.py",
        "angle.sin_()",
        "angle.cos_()",
        in_file(STREAMS, "test_normals_are_standard_normal"),
    ),
    Fault(
        "a resumed keystream is off by one block",
        "dp/streams.py",
        'block.to_bytes(_AES_BLOCK, "big")',
        '(block + (position > 0)).to_bytes(_AES_BLOCK, "big")',
        in_file(STREAMS, "test_a_stream_goes_on_where_another_stopped"),
    ),
    Fault(
        "a resumed keystream starts at a whole block",
        "dp/streams.py",
        "self._encryptor.update(bytes(used))",
        "self._encryptor.update(bytes(0 * used))",
        in_file(STREAMS, "test_a_stream_goes_on_where_another_stopped"),
    ),
)

FAULTS = SAMPLING + RANDOMNESS
